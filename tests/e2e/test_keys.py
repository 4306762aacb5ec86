"""A gateway with API keys: closed to everybody else on both surfaces, and a bound for each key."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import openai
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.duration_pb2 import Duration
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from openai import AsyncOpenAI
from pagewire.v1 import admin_pb2, admin_pb2_grpc, inference_pb2_grpc

from gateway.key_interceptor import OPEN
from servicekit.errors import Reason, ResourceExhausted
from servicekit.health_check import is_serving
from servicekit.status import error_of
from tests.cachesvc.rpc import failure_of
from tests.e2e.second_gateway import SecondGateway, second_gateway
from tests.e2e.system import System, greedy, ids_of

ALICE, BOB = "alice-0123456789", "bob-0123456789abc"
WRONG = "nobody-0123456789"


def bearer(key: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {key}")]


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"alice:{ALICE}\n{BOB}\n")
    return str(path)


@pytest.fixture(scope="module")
def gateway(
    tiny: System, key_file: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecondGateway]:
    settings = ["--api-key-file", key_file, "--max-live-requests", "2"]
    with second_gateway(tiny, tmp_path_factory.mktemp("gateway"), *settings) as gateway:
        yield gateway


def rpcs_of(channel: grpc.Channel) -> list[str]:
    """The paths of all methods, as the server tells: for that it wants no key."""
    told = ProtoReflectionDescriptorDatabase(channel)
    pool = DescriptorPool(told)
    return [
        f"/{name}/{method.name}"
        for name in told.get_services()
        for method in pool.FindServiceByName(name).methods
    ]


@pytest.mark.parametrize(
    ("metadata", "reason"), [([], Reason.MISSING_API_KEY), (bearer(WRONG), Reason.INVALID_API_KEY)]
)
def test_every_rpc_but_health_and_reflection_wants_a_key(
    gateway: SecondGateway, metadata: list[tuple[str, str]], reason: Reason
) -> None:
    with grpc.insecure_channel(gateway.address) as channel:
        closed = [rpc for rpc in rpcs_of(channel) if not rpc.startswith(OPEN)]
        assert len(closed) >= 8
        for rpc in closed:
            for call in (
                channel.unary_stream(rpc)(b"no message", metadata=metadata, timeout=30),
                channel.stream_stream(rpc)(iter([b"no"]), metadata=metadata, timeout=30),
            ):
                with pytest.raises(grpc.RpcError) as refused:
                    next(call)
                error = error_of(refused.value)
                assert (error.code_name, error.reason) == ("UNAUTHENTICATED", reason), rpc
    assert is_serving(gateway.address)


async def test_whoever_has_a_key_is_answered_over_grpc(gateway: SecondGateway) -> None:
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        for key in (ALICE, BOB):
            assert await ids_of(stub.Generate(greedy([1, 2, 3], 4), metadata=bearer(key)))


async def test_whoever_has_a_key_is_answered_over_http(gateway: SecondGateway) -> None:
    base_url = f"http://{gateway.http_address}/v1"
    async with AsyncOpenAI(base_url=base_url, api_key=BOB, max_retries=0) as client:
        assert (await client.models.list()).data
    async with AsyncOpenAI(base_url=base_url, api_key=WRONG, max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            await client.models.list()
    assert refused.value.code == "invalid_api_key"


@pytest.mark.parametrize(("flags", "code"), [(True, 0), (False, 1)])
def test_pagewire_generate_takes_its_key_from_a_file(
    gateway: SecondGateway, key_file: str, flags: bool, code: int
) -> None:
    command = [sys.executable, "-m", "gateway.cli", "generate", "hello", "--max-tokens", "5"]
    command += ["--address", gateway.address, *(("--api-key-file", key_file) if flags else ())]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert asked.returncode == code
    assert ("5 tokens in, 5 out" if flags else "MISSING_API_KEY") in asked.stderr


async def test_a_key_has_so_many_live_requests_on_both_surfaces_and_another_its_own(
    gateway: SecondGateway, tiny: System
) -> None:
    base_url = f"http://{gateway.http_address}/v1"
    async with (
        grpc.aio.insecure_channel(gateway.address) as channel,
        grpc.aio.insecure_channel(gateway.admin_address) as admin_channel,
        AsyncOpenAI(base_url=base_url, api_key=ALICE, max_retries=0) as alice,
    ):
        generate = inference_pb2_grpc.InferenceServiceStub(channel).Generate
        often = admin_pb2.WatchLoadRequest(interval=Duration(nanos=10_000_000))
        watch = admin_pb2_grpc.AdminServiceStub(admin_channel).WatchLoad(often)
        with tiny.held():
            calls = [generate(greedy([1, 2, nth], 200), metadata=bearer(ALICE)) for nth in range(2)]
            await asyncio.gather(*(call.read() for call in calls))
            refused = await failure_of(generate(greedy([1], 2), metadata=bearer(ALICE)))
            assert isinstance(refused, ResourceExhausted)
            assert refused.reason is Reason.TOO_MANY_LIVE_REQUESTS
            assert refused.metadata == {"live_requests": "2", "max_live_requests": "2"}
            with pytest.raises(openai.RateLimitError, match="2 live requests, and max_live_re"):
                await alice.completions.create(model=tiny.model_dir.name, prompt="hi", max_tokens=2)
            other = generate(greedy([1], 2), metadata=bearer(BOB))
            assert (await other.read()).HasField("started")
            calls[0].cancel()
            while (await watch.read()).live_requests != 2:  # one of each
                pass
            again = generate(greedy([1], 2), metadata=bearer(ALICE))
            assert (await again.read()).HasField("started")
        answers = await asyncio.gather(*(ids_of(call) for call in (calls[1], other, again)))
        watch.cancel()
    assert [len(ids) for ids in answers] == [200, 2, 2]
    await tiny.settled()


def test_a_call_is_logged_with_the_name_of_its_key_and_no_key_ever(gateway: SecondGateway) -> None:
    lines = [line for line in gateway.log.splitlines() if 'event="request ended"' in line]
    assert {found[1] for line in lines if (found := re.search(r"caller=(\S+)", line))} >= {"alice"}
    assert not any(key in gateway.log for key in (ALICE, BOB, WRONG))


def test_a_gateway_without_keys_that_others_reach_says_so_once(
    tiny: System, tmp_path: Path
) -> None:
    with second_gateway(tiny, tmp_path, "--listen", "0.0.0.0:0") as gateway:
        (line,) = [line for line in gateway.log.splitlines() if "level=warning" in line]
    assert "addresses=0.0.0.0:0" in line
    assert "--api-key-file" in line
