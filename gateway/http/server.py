"""The HTTP server, on the event loop of the gateway's gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias

import structlog
import uvicorn
from fastapi import FastAPI

from servicekit.tls import Tls

log = structlog.get_logger()

WithinGrace: TypeAlias = Callable[[asyncio.Future[Any], float], Awaitable[bool]]
KEEP_ALIVE_S = 75  # longer than clients keep connections that they do not use
CUT_S = 2.0  # for answers that were cut to say so


class HttpServer:
    """Serves `app` at a socket that listens. Owns both; `cut` ends the answers under way.

    Without `tls` in the open.
    """

    def __init__(
        self,
        listener: socket.socket,
        app: FastAPI,
        cut: asyncio.Event,
        tls: Tls | None = None,
    ) -> None:
        self._listener = listener
        self._cut = cut
        self._running: asyncio.Task[None] | None = None
        self._server = _Server(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                **_tls_settings(tls),
            )
        )

    def start(self) -> asyncio.Task[None]:
        """What answers from now on, until `stop`."""
        host, port = self._listener.getsockname()[:2]
        log.info("listening for http", address=f"{host}:{port}")
        self._running = asyncio.create_task(self._server.serve([self._listener]))
        return self._running

    async def stop(self, within_grace: WithinGrace, grace_s: float) -> None:
        """Take nothing new, let answers run for `grace_s` seconds, or as long as `within_grace`
        waits; then cut them.
        """
        assert self._running is not None
        self._server.should_exit = True
        if not await within_grace(self._running, grace_s):
            self._cut.set()
            await asyncio.wait((self._running,), timeout=CUT_S)
            self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)


def _tls_settings(tls: Tls | None) -> dict[str, Any]:
    if tls is None:
        return {}
    return {
        "ssl_certfile": tls.cert,
        "ssl_keyfile": tls.key,
        "ssl_ca_certs": tls.client_ca,
        "ssl_cert_reqs": ssl.CERT_NONE if tls.client_ca is None else ssl.CERT_REQUIRED,
    }


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone: the host of the process has them."""
        yield
