"""One service as a child process, through all its lives."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Sequence

import structlog

from servicekit.health_check import Health, health_of

log = structlog.get_logger()

POLL_S = 0.1  # until it serves
CHECK_S = 1.0  # from then on
# Checks of CHECK_TIMEOUT_S in a row without an answer: 24 s with what is between them. A step or a
# load never takes the event loop for so long, and what is started then serves before a gateway
# gives its requests up (--max-outage-s).
CHECK_TIMEOUT_S, SILENT_CHECKS = 2.0, 8


class Child:
    """Started again and again by whoever owns it, with the arguments that `arguments_of` gives for
    that life, counted from 1. `health_address` is where it says that it serves.

    It has a session of its own: a Ctrl-C is for the parent, which stops its children in order.
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments_of: Callable[[int], Sequence[str]],
        health_address: str,
    ) -> None:
        self.name = name
        self._module = module
        self._arguments_of = arguments_of
        self._lives = 0
        self._health_address = health_address
        self._process: asyncio.subprocess.Process | None = None  # None: never started
        self._began_s = 0.0
        self.served = False  # in this life

    async def start(self, parent_fd: int) -> None:
        """Begin a life. It ends with that of the pipe's other end, too."""
        self._lives += 1
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self._module, *self._arguments_of(self._lives)),
            *("--parent-fd", str(parent_fd)),
            pass_fds=[parent_fd],
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        self._began_s = time.monotonic()
        self.served = False

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def life_s(self) -> float:
        """Since it was started last."""
        return time.monotonic() - self._began_s

    @property
    def end(self) -> str | None:
        """How it ended; None while it runs, or before it was started."""
        code = None if self._process is None else self._process.returncode
        if code is None:
            return None
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}; its last line above says why"

    async def ended(self) -> None:
        """Return when this life is over."""
        if self._process is not None:
            await self._process.wait()

    async def ended_or_hung(self) -> None:
        """Return when this life is over. One that served and then answers no health check for 24 s
        is killed: it holds up what others could go on with.
        """
        asking = asyncio.create_task(self._ask_until_hung())
        try:
            await self.ended()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _ask_until_hung(self) -> None:
        silent_checks = 0  # and no clock, which goes on while we are stopped ourselves
        while silent_checks < SILENT_CHECKS:
            health = await asyncio.to_thread(health_of, self._health_address, CHECK_TIMEOUT_S)
            self.served = self.served or health is Health.SERVING
            is_silent = self.served and health is Health.SILENT
            silent_checks = silent_checks + 1 if is_silent else 0
            await asyncio.sleep(CHECK_S if self.served else POLL_S)
        log.warning("child hangs, killing it", child=self.name, silent_checks=silent_checks)
        self.kill()

    def terminate(self, *, at_once: bool = False) -> None:
        """Ask it to end; `at_once`, without waiting for what it does: that is a second signal, and
        another one, since two of a kind may arrive as one.
        """
        self._signal(signal.SIGTERM)
        if at_once:
            self._signal(signal.SIGINT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it ends by itself just now
                self._process.send_signal(number)
