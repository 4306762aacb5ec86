"""A manager behind a real server, with a fake runner behind it that speaks the real protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from pagewire.v1 import cache_pb2 as pb
from pagewire.v1 import cache_pb2_grpc, runner_pb2_grpc

from cachesvc.core import Core
from cachesvc.limits import Limits
from cachesvc.service import CacheService
from tests.cachesvc.builders import describe
from tests.cachesvc.fake_runner import continuation
from tests.cachesvc.fake_runner_service import FakeRunnerService
from tests.cachesvc.gateway_client import PATIENCE_S, Gateway
from tests.cachesvc.rpc import channel_to, served

ADD_CACHE = cache_pb2_grpc.add_CacheServiceServicer_to_server
ADD_RUNNER = runner_pb2_grpc.add_RunnerServiceServicer_to_server


def answer(key: int, count: int, prompt: tuple[int, ...] = (1, 2, 3)) -> list[int]:
    return continuation(prompt, seed=key, count=count, vocab_size=16)


@dataclass
class Chain:
    """A manager with a fake runner behind it, and a channel for gateways."""

    service: CacheService
    runner: FakeRunnerService
    channel: grpc.aio.Channel

    @property
    def stub(self) -> cache_pb2_grpc.CacheServiceStub:
        return cache_pb2_grpc.CacheServiceStub(self.channel)

    async def gateway(self) -> Gateway:
        """A session that has heard of an attached runner."""
        gateway = Gateway(self.channel)
        await gateway.open()
        await gateway.until(lambda _: gateway.opened and gateway.opened[-1].serving)
        await self.until(lambda stats: stats.last_result_plan_id)  # the plan that resets rows
        return gateway

    async def stats(self) -> pb.GetStatsResponse:
        return await self.stub.GetStats(pb.GetStatsRequest())

    async def until(self, holds: Callable[[pb.GetStatsResponse], object]) -> pb.GetStatsResponse:
        """Ask for the counters until they are as the test waits for."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds(stats := await self.stats()):
                pass
        return stats


@asynccontextmanager
async def manager_of(
    runner_address: str, max_stall_s: float | None = None, **limits: Any
) -> AsyncIterator[tuple[CacheService, grpc.aio.Channel]]:
    """A manager that keeps attaching to `runner_address`, and a channel to it."""
    core = Core(Limits(**{"step_budget_tokens": 64, "credits": 2, **limits}))
    service = CacheService(core, runner_address)
    client = asyncio.create_task(service.runner_client.run())
    try:
        async with (
            served(ADD_CACHE, service, max_stall_s) as address,
            channel_to(address) as channel,
        ):
            yield service, channel
    finally:
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)


@asynccontextmanager
async def chain_of(max_stall_s: float | None = None, **limits: Any) -> AsyncIterator[Chain]:
    """Manager and fake runner of sixteen pages. `max_stall_s`: of a gateway that does not read."""
    runner = FakeRunnerService(describe(num_pages=16))
    async with (
        served(ADD_RUNNER, runner) as address,
        manager_of(address, max_stall_s, **limits) as (service, channel),
    ):
        yield Chain(service, runner, channel)
