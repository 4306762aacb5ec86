"""AdminService: the load, the drain, and what the manager tells and does when it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc
from pagewire.v1 import admin_pb2 as pb
from pagewire.v1 import admin_pb2_grpc, cache_pb2, cache_pb2_grpc

from gateway.cache_client import CacheClient
from gateway.intake import Intake
from servicekit.errors import InvalidArgument, Reason
from servicekit.host import ServiceHost
from servicekit.status import error_of, seconds_of

T = TypeVar("T")

ASK_S = 30.0  # for the manager, of a caller without a deadline
LOOK_S = 1.0
LEAST_LOOK_S = 0.01


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Of one gateway, whose health is that of `hosts`; the first of them is the public one."""

    def __init__(
        self,
        client: CacheClient,
        intake: Intake,
        manager: cache_pb2_grpc.CacheServiceAsyncStub,
        hosts: Sequence[ServiceHost],
    ) -> None:
        self._client = client
        self._intake = intake
        self._manager = manager
        self._hosts = hosts

    async def GetStats(  # noqa: N802 # the RPC's name
        self, request: cache_pb2.GetStatsRequest, context: Any
    ) -> cache_pb2.GetStatsResponse:
        return await _passed_on(self._manager.GetStats, request, context)

    async def WatchLoad(  # noqa: N802 # the RPC's name
        self, request: pb.WatchLoadRequest, context: Any
    ) -> AsyncIterator[pb.WatchLoadResponse]:
        look_s = seconds_of(request.interval) if request.HasField("interval") else LOOK_S
        if look_s < LEAST_LOOK_S:
            raise InvalidArgument(
                Reason.INVALID_FIELD,
                f"interval is {look_s:g} s; it must be at least {LEAST_LOOK_S:g} s",
                field="interval",
            )
        told: pb.WatchLoadResponse | None = None
        while True:
            load = await self._load()
            if load != told:
                yield load
                told = load
            await asyncio.sleep(look_s)

    async def Drain(  # noqa: N802 # the RPC's name
        self, request: pb.DrainRequest, context: Any
    ) -> pb.DrainResponse:
        for host in self._hosts:
            await host.drain()
        self._client.drain()
        return pb.DrainResponse(live_requests=self._intake.live_requests)

    async def FlushCache(  # noqa: N802 # the RPC's name
        self, request: cache_pb2.FlushCacheRequest, context: Any
    ) -> cache_pb2.FlushCacheResponse:
        return await _passed_on(self._manager.FlushCache, request, context)

    async def CheckIntegrity(  # noqa: N802 # the RPC's name
        self, request: cache_pb2.CheckIntegrityRequest, context: Any
    ) -> cache_pb2.CheckIntegrityResponse:
        return await _passed_on(self._manager.CheckIntegrity, request, context)

    async def Explain(  # noqa: N802 # the RPC's name
        self, request: cache_pb2.ExplainRequest, context: Any
    ) -> cache_pb2.ExplainResponse:
        return await _passed_on(self._manager.Explain, request, context)

    async def PageHistory(  # noqa: N802 # the RPC's name
        self, request: cache_pb2.PageHistoryRequest, context: Any
    ) -> cache_pb2.PageHistoryResponse:
        return await _passed_on(self._manager.PageHistory, request, context)

    async def RequestPages(  # noqa: N802 # the RPC's name
        self, request: cache_pb2.RequestPagesRequest, context: Any
    ) -> cache_pb2.RequestPagesResponse:
        return await _passed_on(self._manager.RequestPages, request, context)

    async def _load(self) -> pb.WatchLoadResponse:
        return pb.WatchLoadResponse(
            serving=self._client.serving and not self._hosts[0].draining,
            draining=self._hosts[0].draining,
            live_requests=self._intake.live_requests,
            manager=await self._manager_load(),
        )

    async def _manager_load(self) -> pb.ManagerLoad | None:
        try:
            stats = await self._manager.GetStats(cache_pb2.GetStatsRequest(), timeout=ASK_S)
        except grpc.aio.AioRpcError:
            return None  # not reached, which is what the field's absence says
        return pb.ManagerLoad(
            running_requests=stats.running_requests,
            waiting_requests=stats.waiting_requests,
            used_pages=stats.private_pages + stats.locked_pages,
            num_pages=stats.num_pages,
        )


async def _passed_on(call: Callable[..., Awaitable[T]], request: Any, context: Any) -> T:
    """What the manager answers. Errors: those that it reports."""
    try:
        return await call(request, timeout=context.time_remaining() or ASK_S)
    except grpc.aio.AioRpcError as failure:
        raise error_of(failure) from failure
