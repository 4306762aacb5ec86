"""Work for a client that may leave before it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from servicekit.errors import Cancelled, Reason, Unavailable

T = TypeVar("T")


async def until_gone(work: Coroutine[Any, Any, T], receive: Receive, cut: asyncio.Event) -> T:
    """What `work` returns or raises. It is cancelled, and has ended, when this raises otherwise.

    `receive` is the request's, whose body was read. Errors: Cancelled when the client left,
    Unavailable when `cut` was set, which says that the process has no more time.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(receive))
    cutting = asyncio.ensure_future(cut.wait())
    tasks = (working, leaving, cutting)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if leaving.done() and not leaving.cancelled():
        raise Cancelled(Reason.CANCELLED, "the client left before the answer was complete")
    raise Unavailable(Reason.DRAINING, "the server stops: send the request to another one")


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
