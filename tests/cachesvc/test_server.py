"""The process's life: health follows the runner, SIGTERM drains, the socket has one owner."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2 as health
from grpc_health.v1 import health_pb2_grpc

from cachesvc.config import CacheConfig
from cachesvc.server import SERVICE_NAME, serve
from servicekit.errors import SetupError
from tests.cachesvc.chain import ADD_RUNNER, answer
from tests.cachesvc.fake_runner_service import FakeRunnerService
from tests.cachesvc.gateway_client import PATIENCE_S, Gateway
from tests.cachesvc.rpc import channel_to, failure_of, served, served_at, socket_address

SERVING = health.HealthCheckResponse.SERVING
NOT_SERVING = health.HealthCheckResponse.NOT_SERVING


@dataclass
class Process:
    """`serve` in this process, and what its health says."""

    task: asyncio.Task[None]
    address: str
    channel: grpc.aio.Channel
    watch: Any
    health: int | None = None  # heard last

    async def until_health(self, *statuses: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.health not in statuses:
                self.health = (await self.watch.read()).status

    def terminate(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    async def until_over(self) -> None:
        await asyncio.wait_for(asyncio.shield(self.task), PATIENCE_S)

    @property
    def socket(self) -> Path:
        return Path(self.address.removeprefix("unix:"))


@asynccontextmanager
async def process(runner_address: str, grace_s: float = 30) -> AsyncIterator[Process]:
    with socket_address() as address:
        config = CacheConfig(listen=address, runner=runner_address, grace_s=grace_s)
        task = asyncio.create_task(serve(config))
        async with channel_to(address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(
                health.HealthCheckRequest(service=SERVICE_NAME), wait_for_ready=True
            )
            made = Process(task, address, channel, watch)
            try:
                await made.until_health(NOT_SERVING, SERVING)
                yield made
            finally:
                if not task.done():
                    made.terminate()
        await asyncio.wait_for(task, PATIENCE_S)


@asynccontextmanager
async def manager_with(runner: FakeRunnerService, grace_s: float = 30) -> AsyncIterator[Process]:
    """A manager that is attached to `runner`."""
    async with (
        served(ADD_RUNNER, runner) as runner_address,
        process(runner_address, grace_s) as manager,
    ):
        await manager.until_health(SERVING)
        yield manager


async def test_health_follows_the_runner_as_it_comes_and_goes() -> None:
    with socket_address() as runner_address:
        async with process(runner_address) as manager:
            assert manager.health == NOT_SERVING
            for boot_id in ("boot-1", "boot-2"):
                runner = FakeRunnerService(boot_id=boot_id)
                async with served_at(runner_address, ADD_RUNNER, runner):
                    await manager.until_health(SERVING)
                await manager.until_health(NOT_SERVING)


async def test_health_of_the_whole_process_is_that_of_its_service() -> None:
    async with manager_with(FakeRunnerService()) as manager:
        stub = health_pb2_grpc.HealthStub(manager.channel)
        assert (await stub.Check(health.HealthCheckRequest())).status == SERVING


async def test_sigterm_lets_requests_end_and_leaves_no_socket() -> None:
    runner = FakeRunnerService()
    async with manager_with(runner) as manager:
        gateway = Gateway(manager.channel)
        await gateway.open()
        runner.gate.clear()
        await gateway.submit(1, max_tokens=9)
        await gateway.until(lambda _: gateway.accepted)
        manager.terminate()
        await manager.until_health(NOT_SERVING)
        await gateway.submit(2)
        await gateway.until(lambda _: gateway.rejected)
        assert gateway.rejected[2].reason == "DRAINING"
        runner.gate.set()
        await gateway.until_finished(1)
        assert gateway.tokens[1] == answer(1, 9)
        await gateway.call.done_writing()
        await manager.until_over()
        assert list(manager.socket.parent.iterdir()) == []  # nothing else runs


async def test_after_the_grace_requests_are_cut_off() -> None:
    runner = FakeRunnerService()
    async with manager_with(runner, grace_s=0) as manager:
        gateway = Gateway(manager.channel)
        await gateway.open()
        runner.gate.clear()
        await gateway.submit(1)
        await gateway.until(lambda _: gateway.accepted)
        manager.terminate()
        await manager.until_over()
        await failure_of(gateway.call)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"step_budget_tokens": 0}, "--step-budget-tokens is 0; it must be at least 1"),
        ({"credits": 0}, "--credits is 0; it must be at least 1"),
        ({"grace_s": -1.0}, "--grace-s is -1.0; it must be at least 0"),
        ({"grace_s": float("nan")}, "--grace-s is nan; it must be at least 0"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(SetupError) as caught:
        CacheConfig(listen="unix:a", runner="unix:b", **settings)
    assert str(caught.value) == text
