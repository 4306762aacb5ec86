"""Case 10.8, modelcontextprotocol/python-sdk #514: a server that waits without limit for open
streams. Here each gets a last word within the grace period, and the process ends with 0.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from servicekit.health_check import Health, health_of, is_serving
from tests.e2e.open_streams import open_streams
from tests.e2e.served import SLOW, names_in, until
from tests.e2e.system import System, greedy, ids_of, running

CUT = ["DRAINING"] * 6


class FakeSystem(System):
    """On a runner without a model, whose answers take long."""

    grace_s = 0.0  # of the gateway that is started next

    def command(self, name: str) -> list[str]:
        command = super().command(name)
        if name == "runnersvc":
            command[command.index("-m") + 1] = "runnersvc.fake"
            command += SLOW
        if name == "gateway":
            command += ["--grace-s", str(self.grace_s)]
        return command

    def start_gateway(self, grace_s: float) -> subprocess.Popen[bytes]:
        """In place of the one that a test ended."""
        if self.processes["gateway"].poll() is None:
            self.kill("gateway")
        self.grace_s = grace_s
        self.start_one("gateway")
        self.wait_serving(self.address)
        return self.processes["gateway"]


@pytest.fixture(scope="module")
def system(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeSystem]:
    with running(FakeSystem(tiny_dir, tmp_path_factory.mktemp("drain"))) as system:
        yield system


async def test_case_10_8_sigterm_gives_streams_their_grace_and_then_a_last_word(
    system: FakeSystem,
) -> None:
    """Health says so first; nothing new is taken meanwhile."""
    gateway = await asyncio.to_thread(system.start_gateway, grace_s=2)
    async with open_streams(system.address, system.http_address) as streams:
        gateway.terminate()
        await asyncio.to_thread(until, lambda: not is_serving(system.admin_address))
        assert health_of(system.admin_address) is Health.NOT_SERVING
        async with system.client() as stub:
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await ids_of(stub.Generate(greedy([1], 1)))
        await streams.begun()  # those that are open go on
        assert await streams.ends() == CUT
    assert await asyncio.to_thread(gateway.wait) == 0
    await system.settled()


async def test_case_10_8_a_second_sigterm_hastens_the_last_word(system: FakeSystem) -> None:
    gateway = await asyncio.to_thread(system.start_gateway, grace_s=3600)
    async with open_streams(system.address, system.http_address) as streams:
        gateway.terminate()
        await asyncio.to_thread(until, lambda: not is_serving(system.admin_address))
        gateway.terminate()
        assert await streams.ends() == CUT
    assert await asyncio.to_thread(gateway.wait) == 0
    await system.settled()


async def test_case_10_8_a_hung_runner_does_not_hold_the_gateway_up(system: FakeSystem) -> None:
    gateway = await asyncio.to_thread(system.start_gateway, grace_s=1)
    async with open_streams(system.address, system.http_address) as streams:
        with system.held():
            gateway.terminate()
            assert await streams.ends() == CUT
            assert await asyncio.to_thread(gateway.wait) == 0
    await system.settled()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_case_10_8_a_signal_while_weights_load_ends_the_runner_at_once(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The load never ends: the recording that it reads is a pipe without a writer."""
    os.mkfifo(tmp_path / "pipe")
    address = f"unix:{tmp_path}/runner.sock"
    command = [sys.executable, "-m", "runnersvc.fake", "--listen", address]
    with subprocess.Popen([*command, "--recording", str(tmp_path / "pipe")]) as runner:
        until(lambda: health_of(address) is Health.NOT_SERVING)
        runner.send_signal(number)
        assert runner.wait() == 0
    assert names_in(tmp_path) == ["pipe"]
