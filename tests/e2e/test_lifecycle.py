"""Starting, refusing to start, draining and stopping, of each service and of `pagewire serve`."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from urllib.request import urlopen

import grpc
import httpx2
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from pagewire.v1 import (
    cache_pb2,
    cache_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    runner_pb2,
    runner_pb2_grpc,
)

from servicekit.health_check import is_serving
from tests.e2e.neighbour import undisturbed
from tests.e2e.served import names_in, until
from tests.e2e.system import System, free_port, greedy, ids_of, running
from tests.e2e.tiny_model import clear_prompt, make_tiny_model


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


async def test_sigterm_lets_a_running_answer_end_and_leaves_nothing_behind(
    tiny_dir: Path, tmp_path: Path
) -> None:
    prompt_ids, expected = clear_prompt(tiny_dir, 6, 100)
    with running(System(tiny_dir, tmp_path, num_threads=1)) as system:
        async with system.client() as stub:
            call = stub.Generate(greedy(prompt_ids, 100))
            first = [await call.read() for _ in range(5)]
            for process in system.processes.values():
                process.send_signal(signal.SIGTERM)  # all at once
            rest = await ids_of(call)
        codes = await asyncio.to_thread(system.stop)
    assert [i for response in first for i in response.delta.token_ids] + rest == expected
    assert codes == {"gateway": 0, "cachesvc": 0, "runnersvc": 0}
    assert names_in(tmp_path) == ["cachesvc.log", "gateway.log", "runnersvc.log"]


def test_health_is_serving_only_while_the_chain_behind_is_attached(
    tiny_dir: Path, tmp_path: Path
) -> None:
    with running(System(tiny_dir, tmp_path, num_threads=1)) as system:
        system.kill("runnersvc")
        for address in (system.cache_address, system.address):
            until(lambda address=address: not is_serving(address))
        system.start_one("runnersvc")
        system.wait_serving(system.address)
        system.kill("cachesvc")
        until(lambda: not is_serving(system.address))
        assert is_serving(system.runner_address)
        system.start_one("cachesvc")
        system.wait_serving(system.address)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cachesvc", ["--runner", "unix:/nowhere/runner.sock"]),
        ("runnersvc", ["--model", "MODEL"]),
    ],
)
async def test_a_socket_in_use_stays_with_its_owner(
    name: str, arguments: list[str], tiny: System, tiny_dir: Path
) -> None:
    address = {"cachesvc": tiny.cache_address, "runnersvc": tiny.runner_address}[name]
    rest = [str(tiny_dir) if argument == "MODEL" else argument for argument in arguments]
    async with undisturbed(tiny, tiny_dir):
        second = await asyncio.to_thread(run, name, "--listen", address, *rest)
    assert second.returncode == 2
    assert f"socket {address.removeprefix('unix:')} is in use" in second.stderr
    assert is_serving(address)


@pytest.mark.parametrize("taken", ["--listen", "--http"])
async def test_case_10_5_a_second_gateway_on_one_port_names_it_and_ends(
    taken: str, tiny: System, tiny_dir: Path, tmp_path: Path
) -> None:
    """ggml-org/llama.cpp #20963: both got the port, and the kernel dealt out the requests between
    two models. Here the first gets each of a hundred.
    """
    other_dir = make_tiny_model(tmp_path / "other", seed=1)
    address = tiny.address if taken == "--listen" else tiny.http_address
    arguments = {"--listen": f"127.0.0.1:{free_port()}", "--cache": tiny.cache_address}
    arguments |= {"--model": str(other_dir), taken: address}
    async with undisturbed(tiny, tiny_dir):
        second = await asyncio.to_thread(run, "gateway", *chain(*arguments.items()))
        names = [await served_name(tiny, taken) for _ in range(100)]
    assert second.returncode == 2
    assert f"address {address} " in second.stderr
    assert names == [tiny_dir.name] * 100


async def served_name(system: System, option: str) -> str:
    """Who answers at the address of `option` on a connection of its own."""
    if option == "--http":
        async with httpx2.AsyncClient(base_url=f"http://{system.http_address}") as http:
            return (await http.get("/v1/models")).json()["data"][0]["id"]
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(system.address, options=options) as channel:
        models = await model_pb2_grpc.ModelServiceStub(channel).ListModels(
            model_pb2.ListModelsRequest()
        )
    return models.models[0].name


@pytest.mark.parametrize("taken", ["--listen", "--http"])
@pytest.mark.parametrize("shares", [False, True], ids=["alone", "ready to share it"])
def test_case_10_5_a_port_of_another_program_is_named(
    taken: str, tiny_dir: Path, *, shares: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=shares) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        arguments = {"--listen": f"127.0.0.1:{free_port()}", "--cache": "unix:/nowhere/cache.sock"}
        arguments |= {"--model": str(tiny_dir), taken: address}
        ours = run("gateway", *chain(*arguments.items()))
    assert ours.returncode == 2
    assert f"address {address} " in ours.stderr


@pytest.fixture
def without_tokenizer(tiny_dir: Path, tmp_path: Path) -> Path:
    model_dir = tmp_path / "model"
    shutil.copytree(tiny_dir, model_dir)
    for path in model_dir.glob("tokenizer*"):
        path.unlink()
    return model_dir


async def test_a_model_directory_without_tokenizer_is_named(
    tiny: System, tiny_dir: Path, without_tokenizer: Path
) -> None:
    model_dir = without_tokenizer
    arguments = ["--listen", f"127.0.0.1:{free_port()}", "--cache", tiny.cache_address]
    async with undisturbed(tiny, tiny_dir):
        served = await asyncio.to_thread(run, "gateway", *arguments, "--model", str(model_dir))
    assert served.returncode == 2
    assert f"the model directory {model_dir} has no tokenizer.json" in served.stderr


@pytest.mark.parametrize("name", ["gateway", "cachesvc", "runnersvc"])
def test_an_unknown_setting_is_refused_by_name(name: str) -> None:
    refused = run(name, "--listn", "unix:/nowhere.sock")
    assert refused.returncode == 2
    assert "unknown setting --listn: did you mean --listen?" in refused.stderr


async def test_a_runner_refuses_another_protocol_version_and_another_model(
    tiny: System, tiny_dir: Path
) -> None:
    attaches = {
        "PROTOCOL_VERSION": runner_pb2.Attach(protocol_version=2, manager_id="m"),
        "FINGERPRINT_MISMATCH": runner_pb2.Attach(
            protocol_version=1, manager_id="m", model_fingerprint="another"
        ),
    }
    async with (
        undisturbed(tiny, tiny_dir),
        grpc.aio.insecure_channel(tiny.runner_address) as channel,
    ):
        for reason, attach in attaches.items():
            call = runner_pb2_grpc.RunnerServiceStub(channel).Execute(
                iter([runner_pb2.ExecuteRequest(attach=attach)])
            )
            await assert_refused(call, reason, f"attach.{reason_field(reason)}")
    assert is_serving(tiny.address)


async def test_a_manager_refuses_another_protocol_version_and_another_model(
    tiny: System, tiny_dir: Path
) -> None:
    opens = {
        "PROTOCOL_VERSION": cache_pb2.Open(protocol_version=2),
        "FINGERPRINT_MISMATCH": cache_pb2.Open(protocol_version=1, model_fingerprint="another"),
    }
    async with (
        undisturbed(tiny, tiny_dir),
        grpc.aio.insecure_channel(tiny.cache_address) as channel,
    ):
        for reason, opened in opens.items():
            call = cache_pb2_grpc.CacheServiceStub(channel).Session(
                iter([cache_pb2.SessionRequest(open=opened)])
            )
            await assert_refused(call, reason, f"open.{reason_field(reason)}")
    assert is_serving(tiny.address)


def reason_field(reason: str) -> str:
    return {"PROTOCOL_VERSION": "protocol_version", "FINGERPRINT_MISMATCH": "model_fingerprint"}[
        reason
    ]


async def assert_refused(call: Iterable, reason: str, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(call))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert field in caught.value.details()
    found = error_details_pb2.ErrorInfo()
    assert rpc_status.from_call(caught.value).details[0].Unpack(found)
    assert (found.reason, found.metadata["field"]) == (reason, field)


def test_pagewire_serve_says_one_line_when_ready_and_stops_its_three_services(
    tiny_dir: Path, tmp_path: Path
) -> None:
    address, http_address = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with serve_tiny(tiny_dir, address, tmp_path, http_address) as serve:
        assert serve.stdout is not None
        ready = f"ready at {address} (gRPC) and http://{http_address} (OpenAI) after "
        assert serve.stdout.readline().startswith(ready)
        with urlopen(f"http://{http_address}/ready") as answer:
            assert answer.status == 200
        asked = run("gateway.cli", "generate", "hello", "--address", address, "--max-tokens", "5")
        assert asked.returncode == 0
        assert "5 tokens in, 5 out" in asked.stderr
        serve.send_signal(signal.SIGINT)
        assert serve.stdout.read() == ""
        assert serve.wait(timeout=30) == 0
    assert names_in(tmp_path) == []


@contextmanager
def serve_tiny(
    tiny_dir: Path, address: str, socket_dir: Path, http_address: str = "off"
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "gateway.cli", "serve", str(tiny_dir), "--listen", address]
    command += ["--http", http_address, "--admin", f"unix:{socket_dir}/admin.sock"]
    settings = ["--socket-dir", str(socket_dir), "--num-threads", "1", "--log-level", "warning"]
    with subprocess.Popen([*command, *settings], stdout=subprocess.PIPE, text=True) as serve:
        try:
            yield serve
        finally:
            serve.kill()


@pytest.mark.parametrize("taken", ["--listen", "--http"])
def test_pagewire_serve_names_a_taken_address_and_starts_nothing(
    taken: str, tiny: System, tiny_dir: Path, tmp_path: Path
) -> None:
    free = f"127.0.0.1:{free_port()}"
    grpc_address = tiny.address if taken == "--listen" else free
    http_address = tiny.http_address if taken == "--http" else free
    with serve_tiny(tiny_dir, grpc_address, tmp_path, http_address) as serve:
        assert serve.stdout is not None
        assert serve.stdout.read() == ""
        assert serve.wait(timeout=30) == 2
    assert names_in(tmp_path) == []


def test_a_hub_name_that_cannot_be_reached_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    served = run("gateway.cli", "serve", "nobody/no-such-model")
    assert served.returncode == 2
    assert served.stderr.count("\n") == 1
    assert "nobody/no-such-model" in served.stderr
