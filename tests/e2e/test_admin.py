"""AdminService over grpcurl and over its stub: the load, the drain, and what the manager tells."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import grpc
import httpx2
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pagewire.v1 import admin_pb2 as pb
from pagewire.v1 import admin_pb2_grpc, cache_pb2, inference_pb2_grpc

from servicekit.errors import InvalidArgument, NotFound, Reason, Unavailable
from servicekit.status import error_of
from tests.cachesvc.rpc import failure_of
from tests.e2e.second_gateway import second_gateway
from tests.e2e.system import System, free_port, greedy, ids_of
from tests.e2e.tiny_model import clear_prompt

SERVICE = "pagewire.v1.AdminService"
OFTEN = pb.WatchLoadRequest(interval=Duration(nanos=10_000_000))


def grpcurl(path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [path, "-plaintext", *arguments], capture_output=True, text=True, timeout=60, check=True
    )


def test_grpcurl_finds_it_by_reflection_and_only_there(tiny: System, grpcurl_path: str) -> None:
    assert SERVICE in grpcurl(grpcurl_path, tiny.admin_address, "list").stdout.split()
    assert SERVICE not in grpcurl(grpcurl_path, tiny.address, "list").stdout
    told = grpcurl(grpcurl_path, tiny.admin_address, "describe", SERVICE).stdout
    for name in pb.DESCRIPTOR.services_by_name["AdminService"].methods_by_name:
        assert f"rpc {name} (" in told
    asked = json.dumps({"service": SERVICE})
    health = grpcurl(
        grpcurl_path, "-d", asked, tiny.admin_address, "grpc.health.v1.Health/Check"
    ).stdout
    assert json.loads(health) == {"status": "SERVING"}


async def test_the_manager_tells_here_what_it_tells_itself(tiny: System, grpcurl_path: str) -> None:
    async with tiny.client() as stub:
        await ids_of(stub.Generate(greedy([1, 2, 3], 4, request_id="told")))
    stats = await tiny.settled()

    def told(rpc: str, asked: dict) -> dict:
        where = (tiny.admin_address, f"{SERVICE}/{rpc}")
        return json.loads(grpcurl(grpcurl_path, "-d", json.dumps(asked), *where).stdout)

    assert told("Explain", {"request_id": "told"})["end"] == "MAX_TOKENS"
    assert told("RequestPages", {"request_id": "told"}) == {}
    assert told("PageHistory", {"page_id": 0})["state"]
    assert told("CheckIntegrity", {}) == {}
    assert told("GetStats", {})["num_pages"] == stats.num_pages
    told("FlushCache", {})
    assert tiny.stats().evictable_pages == 0


async def test_the_managers_refusals_come_through_with_their_reasons(tiny: System) -> None:
    async with grpc.aio.insecure_channel(tiny.admin_address) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        for call, kind, reason in (
            (
                stub.Explain(cache_pb2.ExplainRequest(request_id="nobody")),
                NotFound,
                Reason.REQUEST_NOT_FOUND,
            ),
            (
                stub.PageHistory(cache_pb2.PageHistoryRequest(page_id=-1)),
                InvalidArgument,
                Reason.PAGE_OUT_OF_RANGE,
            ),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            error = error_of(caught.value)
            assert isinstance(error, kind)
            assert error.reason is reason
        too_often = stub.WatchLoad(pb.WatchLoadRequest(interval=Duration(nanos=1)))
        refused = await failure_of(too_often)
    assert isinstance(refused, InvalidArgument)
    assert refused.metadata == {"field": "interval"}


async def test_the_load_is_told_when_it_changes(tiny: System) -> None:
    await tiny.settled()
    async with tiny.client() as stub, grpc.aio.insecure_channel(tiny.admin_address) as channel:
        watch = admin_pb2_grpc.AdminServiceStub(channel).WatchLoad(OFTEN)
        idle = await watch.read()
        assert (idle.serving, idle.draining, idle.live_requests) == (True, False, 0)
        assert (idle.manager.running_requests, idle.manager.used_pages) == (0, 0)
        assert idle.manager.num_pages == 15
        with tiny.held():
            call = stub.Generate(greedy([1, 2, 3], 200))
            while not (load := await watch.read()).manager.running_requests:
                pass
            assert (load.live_requests, load.manager.running_requests) == (1, 1)
            call.cancel()
        while (await watch.read()) != idle:
            pass
        watch.cancel()


async def test_a_drain_lets_what_runs_end_and_takes_nothing_new(
    tiny: System, tiny_dir: Path, tmp_path: Path
) -> None:
    prompt_ids, expected = clear_prompt(tiny_dir, 6, 100)
    with second_gateway(tiny, tmp_path) as gateway:
        async with (
            grpc.aio.insecure_channel(gateway.address) as channel,
            grpc.aio.insecure_channel(gateway.admin_address) as admin_channel,
        ):
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            admin = admin_pb2_grpc.AdminServiceStub(admin_channel)
            call = stub.Generate(greedy(prompt_ids, 100))
            first = [await call.read() for _ in range(3)]
            with tiny.held():
                left = await admin.Drain(pb.DrainRequest())
                again = await admin.Drain(pb.DrainRequest())
                assert left.live_requests == again.live_requests == 1
                for each in (channel, admin_channel):
                    health = await health_pb2_grpc.HealthStub(each).Check(
                        health_pb2.HealthCheckRequest()
                    )
                    assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
                refused = await failure_of(stub.Generate(greedy([1], 1)))
                assert isinstance(refused, Unavailable)
                assert refused.reason is Reason.DRAINING
                async with httpx2.AsyncClient() as client:
                    ready = await client.get(f"http://{gateway.http_address}/ready")
                assert ready.status_code == 503
                watch = admin.WatchLoad(OFTEN)
                assert (await watch.read()).draining
            rest = await ids_of(call)
            while (await watch.read()).live_requests:
                pass
            watch.cancel()
        assert [i for response in first for i in response.delta.token_ids] + rest == expected
        assert gateway.process.poll() is None
        gateway.process.terminate()
        assert gateway.process.wait(timeout=30) == 0


@pytest.mark.parametrize("address", ["0.0.0.0:50052", "nowhere"])
def test_an_address_that_others_reach_is_refused(address: str, tiny: System) -> None:
    command = [sys.executable, "-m", "gateway", "--listen", f"127.0.0.1:{free_port()}"]
    command += ["--admin", address, "--cache", tiny.cache_address, "--model", str(tiny.model_dir)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert "127.0.0.1:PORT or unix:PATH" in refused.stderr
