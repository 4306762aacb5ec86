"""When a child process that ended is started again, and when it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from gateway.child import Child
from servicekit.errors import FatalError

log = structlog.get_logger()

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
LONG_LIFE_S = 30.0  # whoever lived so long is started again as if for the first time
GIVE_UP_AFTER = 5  # ends in a row


class Restarts:
    """The ends of one child, whatever they were: a crash, a kill, a refusal to start."""

    def __init__(self) -> None:
        self._wait_s = FIRST_WAIT_S
        self._failures = 0  # since it last served

    def wait_s_after(self, life_s: float, *, served: bool, could_serve: bool) -> float | None:
        """How long to wait before it is started again, after a life of `life_s` seconds; None when
        it ended GIVE_UP_AFTER times in a row without having been SERVING.

        A life in which it could not serve, for want of the service behind it, does not count.
        """
        if served:
            self._failures = 0
        elif could_serve:
            self._failures += 1
        if self._failures >= GIVE_UP_AFTER:
            return None
        wait_s = FIRST_WAIT_S if life_s >= LONG_LIFE_S else self._wait_s
        self._wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        return wait_s


async def keep_up(child: Child, parent_fd: int, could_serve: Callable[[], bool]) -> None:
    """Start `child`, which runs, again whenever it ends. `could_serve`: whether what it needs to
    serve is there. Errors: FatalError when it is given up.
    """
    restarts = Restarts()
    while True:
        await child.ended_or_hung()
        wait_s = restarts.wait_s_after(child.life_s, served=child.served, could_serve=could_serve())
        if wait_s is None:
            raise FatalError(
                f"{child.name} ended {GIVE_UP_AFTER} times without having served, the last time: "
                f"{child.end}"
            )
        log.warning(
            "child ended, starting it again", child=child.name, end=child.end, wait_s=wait_s
        )
        await asyncio.sleep(wait_s)
        await child.start(parent_fd)
