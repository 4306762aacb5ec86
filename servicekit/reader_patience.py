"""How long an answer waits for a reader that takes nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import structlog

from servicekit.errors import Cancelled, Reason

log = structlog.get_logger()

MAX_STALL_S = 60.0  # of a public reader


class ReaderPatience:
    """Ends `bound` when a write takes `max_stall_s`; never when that is None.

    One timer an answer, set anew when it fires: one for each write took a third of the time that
    Python spends on a token.
    """

    def __init__(self, bound: asyncio.Timeout, max_stall_s: float | None) -> None:
        self._bound = bound
        self._max_stall_s = max_stall_s
        self._loop = asyncio.get_running_loop()
        self._write_began_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    async def taken(self, write: Awaitable[None]) -> None:
        """Wait for `write`, which waits while the reader has enough to read."""
        self._write_began_s = self._loop.time()
        await write
        self._write_began_s = None

    def _look(self) -> None:
        if self._max_stall_s is None:
            return
        now_s = self._loop.time()
        began_s = now_s if self._write_began_s is None else self._write_began_s
        if began_s + self._max_stall_s > now_s:
            self._timer = self._loop.call_at(began_s + self._max_stall_s, self._look)
        else:
            self._bound.reschedule(now_s)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


@asynccontextmanager
async def reader_patience(max_stall_s: float | None) -> AsyncIterator[ReaderPatience]:
    """For the task that writes an answer. Errors: Cancelled READER_STALLED."""
    try:
        async with asyncio.timeout(None) as bound:
            patience = ReaderPatience(bound, max_stall_s)
            try:
                yield patience
            finally:
                patience.end()
    except TimeoutError:
        if not bound.expired():
            raise
        log.warning("reader stalled", max_stall_s=max_stall_s)
        raise Cancelled(
            Reason.READER_STALLED,
            f"nothing of the answer was read for {max_stall_s:g} s: send the request again, and "
            "read what comes",
        ) from None
