"""The server that each service runs in: one address, health, reflection, signals, drain."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from servicekit.errors import SetupError
from servicekit.health_service import HealthService
from servicekit.socket_lock import SocketLock
from servicekit.status import StatusInterceptor
from servicekit.tls import Tls

log = structlog.get_logger()

NEVER_S = 1e9
PARENT_GONE_GRACE_S = 3.0  # nobody is left to say when to stop waiting
CUT_S = 1.0  # for calls that were cut to say so
GIL_SWITCH_INTERVAL_S = (
    5e-5  # the default of 5 ms turns a 0.3 ms round trip into 5 ms beside one busy thread
)


class ServiceHost:
    """A grpc.aio server at `listen` ("unix:PATH" or "HOST:PORT"), not serving until told so.

    Servicers are added to `grpc_server` between construction and `start()`. `max_message_bytes`
    bounds a unary request with a proper status; the transport itself allows four times as much.
    `max_stall_s` bounds how long a stream waits for a reader.
    `interceptors` see a call before that. Without `tls` the port is in the open.
    """

    def __init__(
        self,
        listen: str,
        service_names: Sequence[str],
        max_message_bytes: int | None = None,
        *,
        max_stall_s: float | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        tls: Tls | None = None,
    ) -> None:
        sys.setswitchinterval(GIL_SWITCH_INTERVAL_S)
        self.listen = listen
        self._tls = tls
        self._names = ("", *service_names)
        self._lock: SocketLock | None = None
        self._serving = self._has_served = False
        self._draining = False
        self._stopped = False
        self._stop_asked = asyncio.Event()
        self._stop_hastened = asyncio.Event()
        receive_limit = -1 if max_message_bytes is None else 4 * max_message_bytes
        self.grpc_server = grpc.aio.server(
            interceptors=[*interceptors, StatusInterceptor(max_message_bytes, max_stall_s)],
            options=[
                ("grpc.max_receive_message_length", receive_limit),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        )
        self._health = HealthService()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc_server)
        reflected = (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(reflected, self.grpc_server)

    async def start(self, parent_fd: int | None = None) -> None:
        """Open, and take the signals of the process.

        `parent_fd` is the reading end of a pipe that the parent holds: its end counts as a first
        signal, and PARENT_GONE_GRACE_S later as a second. Errors: SetupError when the address is
        taken.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):  # first: one that came later left a socket
            loop.add_signal_handler(number, self._on_signal)
        if parent_fd is not None:
            loop.add_reader(parent_fd, self._on_parent_gone, parent_fd)
        await self.open()

    async def open(self) -> None:
        """Take the address and answer on it, health NOT_SERVING. Errors: as `start`."""
        if self.listen.startswith("unix:"):
            path = Path(self.listen.removeprefix("unix:"))
            if len(os.fsencode(path)) > 107:
                raise SetupError(
                    f"socket path {path} is longer than the 107 bytes that Unix allows"
                )
            self._lock = SocketLock(path)
        try:
            if self._tls is None:
                self.grpc_server.add_insecure_port(self.listen)
            else:
                self.grpc_server.add_secure_port(self.listen, _credentials(self._tls))
        except RuntimeError:
            raise SetupError(
                f"address {self.listen} cannot be bound: another process holds it, or it is not "
                "of this machine"
            ) from None
        await self._publish(serving=False)
        await self.grpc_server.start()
        log.info("listening", address=self.listen, tls=self._tls is not None)

    @property
    def draining(self) -> bool:
        return self._draining

    async def set_serving(self, *, serving: bool) -> None:
        """Publish health for every service; while draining it stays NOT_SERVING.

        What the process holds when it first serves, modules for the most part, is left out of
        garbage collection from then on: looking at it all took 100 ms and more, in mid-step.
        """
        if serving and not self._has_served:
            self._has_served = True
            gc.freeze()
        if serving != self._serving and not self._draining:
            self._serving = serving
            await self._publish(serving=serving)
            log.info("health changed", serving=serving)

    async def _publish(self, *, serving: bool) -> None:
        codes = health_pb2.HealthCheckResponse
        for name in self._names:
            await self._health.set(name, codes.SERVING if serving else codes.NOT_SERVING)

    def _on_parent_gone(self, parent_fd: int) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(parent_fd)
        log.warning("parent gone")
        self._stop_asked.set()
        loop.call_later(PARENT_GONE_GRACE_S, self._stop_hastened.set)

    def _on_signal(self) -> None:
        (self._stop_hastened if self._stop_asked.is_set() else self._stop_asked).set()

    async def wait_for_stop(self) -> None:
        """Return after the first SIGTERM or SIGINT, draining."""
        await self._stop_asked.wait()
        await self.drain()

    async def drain(self) -> None:
        """Make health NOT_SERVING for good. Safe to call again."""
        if not self._draining:
            log.info("draining", address=self.listen)
        self._draining = True
        await self._health.enter_graceful_shutdown()

    async def within_grace(self, ending: asyncio.Future[Any], grace_s: float | None) -> bool:
        """Wait for `ending`, at most `grace_s` seconds (None: as long as it takes), and no longer
        once a second signal came. Returns whether it is done.
        """
        hastened = asyncio.ensure_future(self._stop_hastened.wait())
        await asyncio.wait((ending, hastened), timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        hastened.cancel()
        return ending.done()

    async def stop(self, grace_s: float, cut: Callable[[], object] | None = None) -> None:
        """Let calls in flight run for `grace_s` seconds, or until a second signal; then end them
        and give the address back. Before they are ended, `cut` may have them end by themselves,
        within CUT_S.

        Safe to call again.
        """
        if self._stopped:
            return
        self._stopped = True
        self._health.end_watches()
        stopping = asyncio.ensure_future(self.grpc_server.stop(NEVER_S))
        if not await self.within_grace(stopping, grace_s) and cut is not None:
            cut()
            await asyncio.wait((stopping,), timeout=CUT_S)
        if not stopping.done():
            stopping.cancel()  # two stops at once race in grpc.aio, to a segmentation fault
            await asyncio.gather(stopping, return_exceptions=True)
            await self.grpc_server.stop(0)
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    roots = None if tls.client_ca is None else Path(tls.client_ca).read_bytes()
    return grpc.ssl_server_credentials(
        [(Path(tls.key).read_bytes(), Path(tls.cert).read_bytes())],
        root_certificates=roots,
        require_client_auth=roots is not None,
    )
