"""How much the gateway takes on: answers at once for each caller, and the longest one may take."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.caller import NOBODY, caller
from servicekit.errors import DeadlineExceeded, PagewireError, Reason, ResourceExhausted


class Intake:
    """Owns the counts of live requests by caller, each choice of a prompt one. Nothing waits here:
    what is too much is refused.

    `max_live_requests`: of one caller, which is everybody where there are no keys; `max_request_s`:
    from the request to the end of its answer. None: no bound.
    """

    def __init__(
        self, max_live_requests: int | None = None, max_request_s: float | None = None
    ) -> None:
        self._max_live_requests = max_live_requests
        self._max_request_s = max_request_s
        self._live: Counter[str] = Counter()

    @property
    def live_requests(self) -> int:
        """Of all callers."""
        return self._live.total()

    @contextmanager
    def taken(self, end: Callable[[PagewireError], object]) -> Iterator[Callable[[int], None]]:
        """Counts a request of the caller as live for as long as the context lasts, and calls `end`
        with DeadlineExceeded when its time is over. What it gives counts as many further choices.

        Errors, of both: ResourceExhausted when the caller has as many as it may.
        """
        name, taken = caller(), 0

        def take(count: int) -> None:
            nonlocal taken
            self._check(name, count)
            self._live[name] += count
            taken += count

        take(1)
        timer = self._timer(end)
        try:
            yield take
        finally:
            if timer is not None:
                timer.cancel()
            self._live[name] -= taken
            if not self._live[name]:
                del self._live[name]

    def _check(self, name: str, count: int) -> None:
        live, most = self._live[name], self._max_live_requests
        if most is not None and live + count > most:
            whose = "this server has" if name == NOBODY else "this API key has"
            raise ResourceExhausted(
                Reason.TOO_MANY_LIVE_REQUESTS,
                f"{whose} {live} live requests, and max_live_requests is {most}: "
                + ("send it again when one has ended" if count == 1 else "ask for fewer choices"),
                live_requests=str(live),
                max_live_requests=str(most),
            )

    def _timer(self, end: Callable[[PagewireError], object]) -> asyncio.TimerHandle | None:
        if self._max_request_s is None:
            return None
        late = DeadlineExceeded(
            Reason.DEADLINE_EXCEEDED,
            f"the answer took longer than max_request_s {self._max_request_s:g}: ask for fewer "
            "tokens, or try again when there is less to do",
        )
        return asyncio.get_running_loop().call_later(self._max_request_s, end, late)
