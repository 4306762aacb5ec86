"""The `__main__` of a service: settings, logs, event loop; one sentence when it cannot start."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn, Protocol, TypeVar

import uvloop

from servicekit.config import read_settings
from servicekit.errors import FatalError, SetupError
from servicekit.logs import configure_logs

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
PARENT_GONE_END_S = 8.0  # more than an end without a parent takes, with all its bounds
PR_SET_PDEATHSIG = 1


class ServiceConfig(Protocol):
    @property
    def log_level(self) -> str: ...
    @property
    def parent_fd(self) -> int | None: ...


C = TypeVar("C", bound=ServiceConfig)


def run_service(
    name: str, description: str, kind: type[C], serve: Callable[[C], Awaitable[None]]
) -> None:
    """Run `serve` with the command line's settings until it returns. Exits 2 on a
    SetupError, 1 on a FatalError; 0 on a signal, or the end of the
    parent, that comes before `serve` takes signals itself. PARENT_GONE_END_S after the end of the
    parent the process is killed if it is still there.
    """
    for number in STOP_SIGNALS:  # process 1 of a container would not hear them, by default
        signal.signal(number, _leave)
    try:
        config = read_settings(kind, sys.argv[1:], prog=name, description=description)
        configure_logs(name, config.log_level)
        if config.parent_fd is not None:
            _run_on_when_the_parent_dies()
            threading.Thread(
                target=_leave_with, args=(config.parent_fd, PARENT_GONE_END_S), daemon=True
            ).start()
        uvloop.run(_awaited(serve(config)))
    except SetupError as error:
        sys.stderr.write(f"{name}: {error}\n")
        sys.exit(2)
    except FatalError as error:
        sys.stderr.write(f"{name}: {error}\n")
        sys.exit(1)


def _leave(*_: object) -> NoReturn:
    sys.exit(0)


def _leave_with(parent_fd: int, within_s: float) -> None:
    """End the process with its parent: softly while `serve` imports what it needs, which may be
    long; else `serve` sees to that, and is killed if it does not within so many seconds.
    """
    select.select([parent_fd], [], [])
    if signal.getsignal(signal.SIGTERM) is _leave:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(within_s)
    os.kill(os.getpid(), signal.SIGKILL)  # without a word: a log that nobody reads may block


def _run_on_when_the_parent_dies() -> None:
    """Even when stopped by then: a stopped process does not see the end of its parent's pipe."""
    if sys.platform == "linux":  # others have nothing like it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


async def _awaited(work: Awaitable[None]) -> None:
    try:
        await work
    finally:  # a signal that comes late finds us done: by default it would kill us on our way out
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)


def end_at_once(exit_code: int) -> NoReturn:
    """End the process though a thread does what cannot be interrupted: the ordinary
    end would wait for it. The caller gave back what outlives a process: sockets, locks.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(exit_code)


def require_at_least(name: str, value: float, least: float) -> None:
    """Errors: SetupError when the setting `name` is below `least`."""
    if not value >= least:
        raise SetupError(f"--{name.replace('_', '-')} is {value}; it must be at least {least}")
