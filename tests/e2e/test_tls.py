"""A gateway with TLS that wants certificates of clients; what is refused before a port opens."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx2
import pytest
from pagewire.v1 import inference_pb2_grpc

from servicekit.health_check import is_serving
from tests.e2e.second_gateway import SecondGateway, second_gateway
from tests.e2e.system import System, free_port, greedy, ids_of
from tests.servicekit.certificates import write_certificates


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates and keys of a server and a client, and who signed them."""
    return write_certificates(tmp_path_factory.mktemp("pem"))


def server_flags(pem: Path, key: str = "server.key") -> list[str]:
    return ["--tls-cert", str(pem / "server.cert"), "--tls-key", str(pem / key)]


def mutual(pem: Path) -> list[str]:
    return [*server_flags(pem), "--tls-client-ca", str(pem / "ca")]


@pytest.fixture(scope="module")
def gateway(
    tiny: System, pem: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecondGateway]:
    with second_gateway(tiny, tmp_path_factory.mktemp("gateway"), *mutual(pem)) as gateway:
        yield gateway


def credentials(pem: Path, *, with_cert: bool) -> grpc.ChannelCredentials:
    names = ("ca", "client.key", "client.cert") if with_cert else ("ca",)
    return grpc.ssl_channel_credentials(*((pem / name).read_bytes() for name in names))


async def test_grpc_answers_a_client_with_a_certificate(gateway: SecondGateway, pem: Path) -> None:
    with_cert = credentials(pem, with_cert=True)
    async with grpc.aio.secure_channel(gateway.address, with_cert) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        assert len(await ids_of(stub.Generate(greedy([1, 2, 3], 4)))) == 4


async def test_grpc_answers_nobody_else(gateway: SecondGateway, pem: Path) -> None:
    without = credentials(pem, with_cert=False)
    for channel in (
        grpc.aio.secure_channel(gateway.address, without),
        grpc.aio.insecure_channel(gateway.address),
    ):
        async with channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Generate(greedy([1], 1), timeout=30).read()
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_http_answers_a_client_with_a_certificate_and_nobody_else(
    gateway: SecondGateway, pem: Path
) -> None:
    trusting = ssl.create_default_context(cafile=pem / "ca")
    known = ssl.create_default_context(cafile=pem / "ca")
    known.load_cert_chain(pem / "client.cert", pem / "client.key")
    url = f"https://{gateway.http_address}/v1/models"
    async with httpx2.AsyncClient(verify=known) as client:
        assert (await client.get(url)).status_code == 200
    for context, wrong_url in ((trusting, url), (known, url.replace("https", "http"))):
        async with httpx2.AsyncClient(verify=context) as client:
            with pytest.raises(httpx2.TransportError):
                await client.get(wrong_url)


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--tls-ca", "ca", "--tls-cert", "client.cert", "--tls-key", "client.key"], 0),
        (["--tls-ca", "ca"], 1),
        ([], 1),
    ],
)
def test_pagewire_generate_shows_its_certificate(
    gateway: SecondGateway, pem: Path, flags: list[str], code: int
) -> None:
    given = [flag if flag.startswith("--") else str(pem / flag) for flag in flags]
    asked = run("gateway.cli", "generate", "hi", "--address", gateway.address, *given)
    assert asked.returncode == code
    assert "Traceback" not in asked.stderr


def test_a_stopped_gateway_frees_its_ports(tiny: System, pem: Path, tmp_path: Path) -> None:
    with second_gateway(tiny, tmp_path, *mutual(pem)) as gateway:
        gateway.process.terminate()
        assert gateway.process.wait(timeout=30) == 0
        for address in (gateway.address, gateway.http_address, gateway.admin_address):
            host, _, port = address.partition(":")
            socket.create_server((host, int(port)), reuse_port=False).close()
    assert "Traceback" not in gateway.log


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("command", ["gateway", "serve"])
def test_a_key_of_another_certificate_is_one_sentence_and_no_port(
    command: str, tiny: System, pem: Path, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{free_port()}"
    flags = ["--listen", address, *server_flags(pem, "client.key")]
    if command == "gateway":
        flags += ["--cache", tiny.cache_address, "--model", str(tiny.model_dir)]
        refused = run("gateway", *flags)
    else:
        flags += ["--socket-dir", str(tmp_path)]
        refused = run("gateway.cli", "serve", str(tiny.model_dir), *flags)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "client.key is not the key of the certificate in" in refused.stderr
    assert not list(tmp_path.iterdir())


def test_pagewire_serve_is_ready_with_tls(tiny: System, pem: Path, tmp_path: Path) -> None:
    """Its own look at the gateway goes to the admin port, which has none."""
    listen, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    admin = f"unix:{tmp_path}/admin.sock"
    command = [sys.executable, "-m", "gateway.cli", "serve", str(tiny.model_dir), *mutual(pem)]
    command += ["--listen", listen, "--http", http, "--admin", admin, "--num-threads", "1"]
    command += ["--socket-dir", str(tmp_path), "--log-level", "warning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serve:
        try:
            assert serve.stdout is not None
            ready = f"ready at {listen} (gRPC) and https://{http} (OpenAI) after "
            assert serve.stdout.readline().startswith(ready)
            assert is_serving(admin)
            serve.terminate()
            assert serve.wait(timeout=30) == 0
        finally:
            serve.kill()
    assert list(tmp_path.iterdir()) == []
