"""The cachesvc process: serves gateways, keeps the runner attached, drains on SIGTERM."""

from __future__ import annotations

import asyncio

from pagewire.v1 import cache_pb2_grpc

from cachesvc.config import CacheConfig
from cachesvc.core import Core
from cachesvc.service import CacheService
from servicekit.host import ServiceHost

SERVICE_NAME = "pagewire.v1.CacheService"
SESSION_GRACE_S = 1.0  # for sessions that have no request left


async def serve(config: CacheConfig) -> None:
    """Run until SIGTERM. Errors: SetupError when the address is taken."""
    core = Core(step_budget_tokens=config.step_budget_tokens, credits=config.credits)
    service = CacheService(core, config.runner)
    host = ServiceHost(config.listen, [SERVICE_NAME])
    cache_pb2_grpc.add_CacheServiceServicer_to_server(service, host.grpc_server)
    await host.start(config.parent_fd)
    tasks = [
        asyncio.create_task(service.runner_client.run()),
        asyncio.create_task(_publish_health(service, host)),
    ]
    stop = asyncio.create_task(host.wait_for_stop())
    done, _ = await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
    service.drain()
    if stop in done:
        await host.within_grace(asyncio.create_task(service.idle.wait()), config.grace_s)
    for task in tasks:
        task.cancel()
    await host.stop(0 if core.live_count else SESSION_GRACE_S)
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


async def _publish_health(service: CacheService, host: ServiceHost) -> None:
    while True:
        await service.changed.wait()
        service.changed.clear()
        await host.set_serving(serving=service.core.serving)
