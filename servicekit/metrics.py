"""The optional Prometheus endpoint of a service. Counters are plain numbers of their owners, read
at scrape time on the owner's event loop: a step never does anything for a metric.
"""

from __future__ import annotations

import asyncio
import socket
import socketserver
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeAlias

import structlog
from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from servicekit.errors import SetupError

log = structlog.get_logger()

Collect: TypeAlias = Callable[[], Iterable[Metric]]
READ_TIMEOUT_S = 5.0  # a loop that does not answer by then is stuck: the scrape fails, as it should
POLL_S = 0.1  # how soon the thread notices that it is to end


@asynccontextmanager
async def metrics_endpoint(address: str | None, collect: Collect) -> AsyncIterator[None]:
    """Serve what `collect` returns at `http://HOST:PORT/metrics` while the context lasts; nothing
    when `address` is None.

    `collect` is called on this event loop at each scrape; text is made of it on another thread.
    Errors: SetupError when the address is no HOST:PORT or is taken.
    """
    if address is None:
        yield
        return
    registry = CollectorRegistry()
    registry.register(_OnLoop(asyncio.get_running_loop(), collect))
    server = _bound(address, registry)
    thread = threading.Thread(
        target=server.serve_forever, args=(POLL_S,), name="metrics", daemon=True
    )
    thread.start()
    log.info("metrics listening", address=address)
    try:
        yield
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()


def tasks() -> Metric:
    """Of the running event loop: a number that does not come down says that something leaks."""
    count = len(asyncio.all_tasks())
    return GaugeMetricFamily("pagewire_tasks", "Tasks on the event loop of this process.", count)


class _OnLoop(Collector):
    """Calls `collect` where the numbers live."""

    def __init__(self, loop: asyncio.AbstractEventLoop, collect: Collect) -> None:
        self._loop = loop
        self._collect = collect

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are checked in tests, not by a scrape at registration."""
        return []

    def collect(self) -> Iterable[Metric]:
        async def read() -> list[Metric]:
            return [*self._collect(), tasks()]

        return asyncio.run_coroutine_threadsafe(read(), self._loop).result(READ_TIMEOUT_S)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:  # glossary: inherited
        """A scrape that failed is one line, and the scraper sees no answer."""
        log.warning("scrape failed", error=repr(sys.exception()))


class _Server6(_Server):
    address_family = socket.AF_INET6


def _bound(address: str, registry: CollectorRegistry) -> _Server:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise SetupError(f"--metrics is {address}; it must be HOST:PORT")
    kind = _Server6 if ":" in host else _Server
    try:
        return kind((host, int(port)), MetricsHandler.factory(registry))
    except OSError as error:
        raise SetupError(
            f"address {address} of --metrics cannot be bound: {error.strerror}"
        ) from error
