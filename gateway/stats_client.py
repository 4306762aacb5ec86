"""What the manager counts, asked for at the moment that somebody wants to know."""

from __future__ import annotations

import grpc
from pagewire.v1 import cache_pb2 as pb
from pagewire.v1 import cache_pb2_grpc

from servicekit.status import error_of

TIMEOUT_S = 5.0


async def manager_stats(address: str) -> pb.GetStatsResponse:
    """Errors: Unavailable, or another, when the manager does not answer."""
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            stub = cache_pb2_grpc.CacheServiceStub(channel)
            return await stub.GetStats(pb.GetStatsRequest(), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
