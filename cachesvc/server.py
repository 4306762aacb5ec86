"""The cachesvc process: serves gateways, keeps the runner attached, drains on SIGTERM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from pagewire.v1 import cache_pb2_grpc

from cachesvc.config import CacheConfig
from cachesvc.core import Core
from cachesvc.journal_file import JournalFile
from cachesvc.metrics import collected
from cachesvc.service import CacheService
from cachesvc.stats import stats_of
from servicekit.host import ServiceHost
from servicekit.metrics import metrics_endpoint
from servicekit.recording import new_recording

SERVICE_NAME = "pagewire.v1.CacheService"
GATEWAY_STALL_S = 10.0  # a gateway that reads nothing for so long is dead
SESSION_GRACE_S = 1.0  # for sessions that have no request left


async def serve(config: CacheConfig) -> None:
    """Run until SIGTERM. Errors: SetupError when an address or the journal is taken, or a file
    cannot be written.
    """
    with _journal(config.journal) as journal:
        await _serve(config, Core(config.limits, journal))


@contextmanager
def _journal(path: str | None) -> Iterator[JournalFile | None]:
    if path is None:
        yield None
        return
    journal = JournalFile(Path(path))
    try:
        yield journal
    finally:
        journal.close()


async def _serve(config: CacheConfig, core: Core) -> None:
    service = CacheService(core, config.runner)
    host = ServiceHost(config.listen, [SERVICE_NAME], max_stall_s=GATEWAY_STALL_S)
    cache_pb2_grpc.add_CacheServiceServicer_to_server(service, host.grpc_server)
    await host.start(config.parent_fd)
    try:
        async with (
            _recorded(service, config.record),
            metrics_endpoint(config.metrics, lambda: collected(stats_of(core))),
        ):
            await _serve_sessions(service, host, config.grace_s)
    finally:
        await host.stop(0)


@asynccontextmanager
async def _recorded(service: CacheService, path: str | None) -> AsyncIterator[None]:
    """Record the plan stream into `path` while the context lasts, if there is one."""
    if path is None:
        yield
        return
    with new_recording(Path(path)) as writer:
        service.runner_client.record_to(writer)
        yield


async def _serve_sessions(service: CacheService, host: ServiceHost, grace_s: float) -> None:
    tasks = [
        asyncio.create_task(service.runner_client.run()),
        asyncio.create_task(_publish_health(service, host)),
        asyncio.create_task(service.keep_time()),
    ]
    stop = asyncio.create_task(host.wait_for_stop())
    done, _ = await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
    service.drain()
    if stop in done:
        await host.within_grace(asyncio.create_task(service.idle.wait()), grace_s)
    for task in tasks:
        task.cancel()
    await host.stop(0 if len(service.core.live) else SESSION_GRACE_S)
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


async def _publish_health(service: CacheService, host: ServiceHost) -> None:
    while True:
        await service.changed.wait()
        service.changed.clear()
        await host.set_serving(serving=service.core.serving)
