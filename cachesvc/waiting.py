"""Requests without a row, in the order in which they get one."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterator
from operator import attrgetter

from cachesvc.request import Req, ReqState

_RANK = attrgetter("rank")


class WaitingQueue:
    """Waiting requests by rank, and the deadlines of those that have one."""

    def __init__(self) -> None:
        self._reqs: list[Req] = []
        self._deadlines: list[tuple[float, int, Req]] = []

    def __len__(self) -> int:
        return len(self._reqs)

    def __iter__(self) -> Iterator[Req]:
        return iter(list(self._reqs))

    def __getitem__(self, nth: int) -> Req:
        return self._reqs[nth]

    def add(self, req: Req) -> None:
        bisect.insort(self._reqs, req, key=_RANK)
        if req.deadline_s is not None:
            heapq.heappush(self._deadlines, (req.deadline_s, req.arrival, req))

    def remove(self, req: Req) -> None:
        del self._reqs[bisect.bisect_left(self._reqs, req.rank, key=_RANK)]

    @property
    def next_deadline_s(self) -> float | None:
        """When `take_expired` may have something to say; None: never, as things are."""
        return self._deadlines[0][0] if self._deadlines else None

    def expired(self, now_s: float) -> list[Req]:
        """Requests that wait and whose time is over, told once. They stay until removed."""
        over: list[Req] = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            req = heapq.heappop(self._deadlines)[2]
            if req.state is ReqState.WAITING and req not in over:
                over.append(req)
        return over
