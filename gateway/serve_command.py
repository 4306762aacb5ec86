"""The command line of `pagewire serve`: three services, until a signal."""

from __future__ import annotations

import asyncio
import signal
import sys
import time

from gateway.model_name import resolve
from gateway.serve_config import NO_HTTP, ServeConfig
from gateway.supervisor import Supervisor
from servicekit.config import read_settings
from servicekit.errors import SetupError
from servicekit.logs import configure_logs


def run(arguments: list[str]) -> None:
    """Serve a model until a signal. Errors: SetupError, FatalError."""
    model = arguments[0] if arguments and not arguments[0].startswith("-") else None
    config = read_settings(
        ServeConfig,
        arguments if model is None else arguments[1:],
        prog="pagewire serve MODEL",
        description="Serve a model: gateway, cachesvc and runnersvc on this machine.",
    )
    if model is None:
        raise SetupError("which model? pagewire serve MODEL, a directory or a hub name")
    configure_logs("pagewire", config.log_level)
    asyncio.run(supervise(Supervisor(resolve(model), config), config))


async def supervise(supervisor: Supervisor, config: ServeConfig) -> None:
    """Start, say when ready, stop on a signal or when a service cannot be kept up; a second signal
    hastens. Errors: SetupError, FatalError.
    """
    began = time.monotonic()
    stop_asked = asyncio.Event()

    def on_signal() -> None:
        if stop_asked.is_set():
            supervisor.hasten()
        stop_asked.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)

    async def serve() -> None:
        await supervisor.start()
        await supervisor.until_ready()
        sys.stdout.write(
            f"ready at {_addresses(config)} after {time.monotonic() - began:.1f} s, Ctrl-C stops\n"
        )
        sys.stdout.flush()
        await supervisor.watch()

    serving, stopping = asyncio.create_task(serve()), asyncio.create_task(stop_asked.wait())
    try:
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()  # raises why it ended
    finally:
        for task in (serving, stopping):
            task.cancel()
        await asyncio.gather(serving, stopping, return_exceptions=True)  # it starts nothing more
        await supervisor.stop()


def _addresses(config: ServeConfig) -> str:
    if config.http == NO_HTTP:
        return config.listen
    scheme = "http" if config.tls_cert is None else "https"
    return f"{config.listen} (gRPC) and {scheme}://{config.http} (OpenAI)"
