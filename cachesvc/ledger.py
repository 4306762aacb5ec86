"""What happened to pages, and why: a ring of arrays, cheap enough to stay on."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servicekit.plan import Int32Array

CAPACITY = 1 << 17  # entries
NOBODY = -1  # as a request: none


class PageState(IntEnum):
    """Where a page belongs. Names and numbers of cache.proto's PageState."""

    FREE = 1
    EVICTABLE = 2
    LOCKED = 3
    PRIVATE = 4
    QUARANTINED = 5


class ChangeReason(IntEnum):
    """Why a page changed. Names and numbers of cache.proto's PageChangeReason, which says more."""

    ALLOCATED = 1
    HIT = 2
    SHARED = 3
    REMAPPED = 4
    DUPLICATE_FREED = 5
    EVICTED = 6
    FINISHED = 7
    STOPPED = 8
    ABORTED = 9
    PREEMPTED = 10
    FAILED = 11
    FLUSHED = 12
    REFUSED = 13
    VOIDED = 14
    HEALED = 15
    ADOPTED = 16


class PageChange(NamedTuple):
    """One entry. `arrival` is the request for which it happened, or NOBODY."""

    plan_id: int
    reason: ChangeReason
    state: PageState
    arrival: int


class Ledger:
    """Owns the last `capacity` changes of pages, one array a column. A note is a few copies.

    `states` is what each page became last, PageState int8[num_pages].
    """

    def __init__(self, page_size: int, num_pages: int, capacity: int = CAPACITY) -> None:
        self.plan_id = 0  # of the plan that is being made
        self.renumber(page_size, num_pages)
        self._capacity = capacity
        self._written = 0  # entries, ever
        self._plan_ids = np.zeros(capacity, dtype=np.int64)
        self._page_ids = np.full(capacity, -1, dtype=np.int32)
        self._arrivals = np.zeros(capacity, dtype=np.int64)
        self._reasons = np.zeros(capacity, dtype=np.int8)
        self._states = np.zeros(capacity, dtype=np.int8)

    def renumber(self, page_size: int, num_pages: int) -> None:
        """Pages of a runner begin, all of them free. What is here keeps its page ids."""
        self._page_size = page_size
        self.states = np.full(num_pages, PageState.FREE, dtype=np.int8)

    def note(
        self,
        reason: ChangeReason,
        state: PageState,
        first_locs: Int32Array,
        arrivals: int | NDArray[np.int64],
    ) -> None:
        """Pages became `state`, for one request or for one each."""
        count = len(first_locs)
        if count == 0:
            return
        begin = self._written % self._capacity
        at: slice | NDArray[np.intp] = slice(begin, begin + count)
        if begin + count > self._capacity:
            at = np.arange(begin, begin + count) % self._capacity  # the last of an entry stays
        self._written += count
        page_ids = first_locs // self._page_size
        self.states[page_ids] = state
        self._page_ids[at] = page_ids
        self._plan_ids[at] = self.plan_id
        self._arrivals[at] = arrivals
        self._reasons[at] = reason
        self._states[at] = state

    def history(self, page_id: int) -> list[PageChange]:
        """What happened to a page, oldest first."""
        at = np.flatnonzero(self._page_ids == page_id)
        oldest = self._written % self._capacity  # where the next entry goes
        at = at[np.argsort((at - oldest) % self._capacity)]
        return [
            PageChange(plan_id, ChangeReason(reason), PageState(state), arrival)
            for plan_id, reason, state, arrival in zip(
                self._plan_ids[at].tolist(),
                self._reasons[at].tolist(),
                self._states[at].tolist(),
                self._arrivals[at].tolist(),
                strict=True,
            )
        ]

    @property
    def oldest_plan_id(self) -> int:
        """The plan of the oldest entry; changes before it are forgotten. 0: nothing is."""
        if self._written <= self._capacity:
            return 0
        return int(self._plan_ids[self._written % self._capacity])
