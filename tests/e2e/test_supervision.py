"""What `pagewire serve` does about children that die, and what is left when it dies itself."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from pagewire.v1 import cache_pb2, cache_pb2_grpc, inference_pb2_grpc

from servicekit.health_check import Health, health_of, is_serving
from tests.cachesvc.rpc import channel_to
from tests.e2e.open_streams import open_streams
from tests.e2e.served import POLL_S, TOKEN_ID, Served, names_in, until
from tests.e2e.system import greedy, ids_of

GONE_S = 10  # within which nothing is left of a parent that was killed


@pytest.fixture
def served(tiny_dir: Path, tmp_path: Path) -> Served:
    """Its grace period is short."""
    return Served(tiny_dir, tmp_path / "sockets", "--grace-s", "1")


@pytest.fixture
def patient(tiny_dir: Path, tmp_path: Path) -> Served:
    return Served(tiny_dir, tmp_path / "sockets", "--grace-s", "60")


def start(process: subprocess.Popen[str]) -> None:
    """Return when it is ready."""
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready at ")


def taken(address: str) -> socket.socket:
    """A listener there as soon as nobody else is."""
    host, _, port = address.partition(":")
    while True:
        try:
            return socket.create_server((host, int(port)))
        except OSError:  # the kernel is still at it
            time.sleep(POLL_S)


async def until_idle(served: Served) -> None:
    async with channel_to(served.cache_address) as channel:
        stub = cache_pb2_grpc.CacheServiceStub(channel)
        while True:
            stats = await stub.GetStats(cache_pb2.GetStatsRequest())
            if stats.running_requests + stats.waiting_requests == 0:
                return
            await asyncio.sleep(POLL_S)


async def test_each_child_that_dies_is_started_again_alone(patient: Served) -> None:
    """The gateway in mid-answer, as in the last part of case 10.3: the manager cancels its
    requests, and its ports are free at once for its successor. The runner once more while `serve`
    waits for an answer to end: that was cut at once.
    """
    served = patient
    with served.running() as process:
        await asyncio.to_thread(start, process)
        pids = served.pids()
        assert sorted(pids) == ["cachesvc", "gateway", "runnersvc"]
        async with open_streams(served.address, served.http_address):
            os.kill(pids["gateway"], signal.SIGKILL)
            await until_idle(served)
            await asyncio.to_thread(served.until_restarted, "gateway", pids["gateway"])
        await asyncio.to_thread(served.until_serving)
        for name in ("cachesvc", "runnersvc"):
            before = served.pids()
            os.kill(before[name], signal.SIGKILL)
            after = {name: await asyncio.to_thread(served.until_restarted, name, before[name])}
            await asyncio.to_thread(served.until_serving)
            assert served.pids() == before | after
        said = 'event="child ended, starting it again" child={} end="killed by SIGKILL" wait_s=0.1'
        lines = served.log.splitlines()
        for name in pids:
            assert sum(said.format(name) in line for line in lines) == 1
        async with grpc.aio.insecure_channel(served.address) as channel:
            call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(greedy([1, 2], 60))
            await call.read()
            process.terminate()
            await asyncio.to_thread(until, lambda: not is_serving(served.admin_address))
            os.kill(served.pids()["runnersvc"], signal.SIGKILL)
            assert await ids_of(call) == [TOKEN_ID] * 60
        assert await asyncio.to_thread(process.wait) == 0
    assert names_in(served.socket_dir) == []
    assert served.pids() == {}


def test_a_gateway_waits_for_a_port_that_another_program_took(served: Served) -> None:
    with served.running() as process:
        start(process)
        pid = served.pids()["gateway"]
        os.kill(pid, signal.SIGKILL)
        with closing(taken(served.address)):
            until(lambda: f"gateway: address {served.address} cannot be bound" in served.log)
            until(lambda: 'child=gateway end="exit code 2' in served.log)
        served.until_serving()
        assert is_serving(served.address)
        process.terminate()
        assert process.wait() == 0


async def test_case_10_3_and_10_8_a_serve_that_dies_takes_all_with_it(
    served: Served,
) -> None:
    """vllm-project/vllm #55510: the engine survived, and kept the GPU. Here nothing is left after
    ten seconds, not even a runner that was stopped, and the ports are free: a second `serve` takes
    them. That one ends as case 10.8 says, though its runner hangs: with a last word to each stream,
    and it says whom it kills.
    """
    with served.running() as process:
        await asyncio.to_thread(start, process)
        async with open_streams(served.address, served.http_address) as streams:
            os.kill(served.pids()["runnersvc"], signal.SIGSTOP)
            process.kill()
            async with asyncio.timeout(GONE_S):
                assert len(await streams.ends()) == 6
                await asyncio.to_thread(served.until_gone)
    assert served.left() == []
    with served.running() as process:
        await asyncio.to_thread(start, process)
        async with open_streams(served.address, served.http_address) as streams:
            os.kill(served.pids()["runnersvc"], signal.SIGSTOP)
            process.terminate()
            assert await streams.ends() == ["DRAINING"] * 6
        assert await asyncio.to_thread(process.wait) == 0
    assert 'event="child does not end, killing it" child=runnersvc' in served.log
    assert names_in(served.socket_dir) == []
    assert served.pids() == {}


async def test_case_10_3_a_serve_killed_while_weights_load_takes_all_with_it(
    served: Served, tmp_path: Path
) -> None:
    """A load that never ends: the recording that the runner reads is a pipe without a writer."""
    os.mkfifo(tmp_path / "pipe")
    with served.running("--recording", str(tmp_path / "pipe")) as process:
        for address in (served.runner_address, served.admin_address):
            await asyncio.to_thread(
                until, lambda address=address: health_of(address) is Health.NOT_SERVING
            )
        process.kill()
        async with asyncio.timeout(GONE_S):
            await asyncio.to_thread(served.until_gone)
    assert served.left() == []
    assert 'event="ends before the model is loaded"' in served.log
