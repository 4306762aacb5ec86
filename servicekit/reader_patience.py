"""How long an answer waits for a reader that takes nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import structlog

from servicekit.errors import Cancelled, Reason

log = structlog.get_logger()

MAX_STALL_S = 60.0  # of a public reader


async def taken(write: Awaitable[None], max_stall_s: float) -> None:
    """Wait for `write`, which waits while the reader has enough to read.

    Errors: Cancelled READER_STALLED.
    """
    try:
        async with asyncio.timeout(max_stall_s) as bound:
            await write
    except TimeoutError:
        if not bound.expired():
            raise
        log.warning("reader stalled", max_stall_s=max_stall_s)
        raise Cancelled(
            Reason.READER_STALLED,
            f"nothing of the answer was read for {max_stall_s:g} s: send the request again, and "
            "read what comes",
        ) from None
