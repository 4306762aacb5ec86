"""grpc.health.v1 as the gRPC package has it, but for watches, which end with the server."""

from __future__ import annotations

import asyncio
from typing import Any

from grpc_health.v1 import health, health_pb2


class HealthService(health.aio.HealthServicer):  # type: ignore[misc] # the package is untyped
    """A server that stops waits for its calls, and a watch has no end of its own: one client that
    watches made every stop take the whole grace period.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ended = asyncio.Event()

    def end_watches(self) -> None:
        """For good: each says NOT_SERVING, and is over."""
        self._ended.set()

    async def Watch(  # noqa: N802 # the RPC's name
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> None:
        watching = asyncio.ensure_future(super().Watch(request, context))
        ended = asyncio.ensure_future(self._ended.wait())
        tasks = (watching, ended)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()  # raises what it ended with
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await context.write(
            health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)
        )
