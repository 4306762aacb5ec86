"""What happened to pages, and why: a ring of arrays, cheap enough to stay on."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servicekit.plan import Int32Array

CAPACITY = 1 << 17  # entries
_FLUSH_AT = 512  # notes
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


class PageChange(NamedTuple):
    """One entry. `arrival` is the request for which it happened, or NOBODY."""

    plan_id: int
    reason: ChangeReason
    state: PageState
    arrival: int


class _Note(NamedTuple):
    """Pages of one change, for one request or for one each."""

    plan_id: int
    reason: ChangeReason
    state: PageState
    first_locs: Int32Array
    arrivals: int | NDArray[np.int64]


class Ledger:
    """Owns the last `capacity` changes of pages.

    A note costs an append; notes become arrays when there are many, or when somebody asks.
    """

    def __init__(self, page_size: int, capacity: int = CAPACITY) -> None:
        self.plan_id = 0  # of the plan that is being made
        self._page_size = page_size
        self._capacity = capacity
        self._written = 0  # entries, ever
        self._plan_ids = np.zeros(capacity, dtype=np.int64)
        self._page_ids = np.full(capacity, -1, dtype=np.int32)
        self._arrivals = np.zeros(capacity, dtype=np.int64)
        self._reasons = np.zeros(capacity, dtype=np.int8)
        self._states = np.zeros(capacity, dtype=np.int8)
        self._notes: list[
            tuple[int, ChangeReason, PageState, Int32Array, int | NDArray[np.int64]]
        ] = []

    def note(
        self,
        reason: ChangeReason,
        state: PageState,
        first_locs: Int32Array,
        arrivals: int | NDArray[np.int64],
    ) -> None:
        """Pages became `state`, for one request or for one each."""
        if len(first_locs):
            self._notes.append(_Note(self.plan_id, reason, state, first_locs, arrivals))
            if len(self._notes) >= _FLUSH_AT:
                self._flush()

    def renumber(self, page_size: int) -> None:
        """Pages of another runner begin; what is here keeps its page ids."""
        self._flush()
        self._page_size = page_size

    def history(self, page_id: int) -> list[PageChange]:
        """What happened to a page, oldest first."""
        self._flush()
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
        self._flush()
        if self._written <= self._capacity:
            return 0
        return int(self._plan_ids[self._written % self._capacity])

    def _flush(self) -> None:
        notes, self._notes = self._notes, []
        if not notes:
            return
        plan_ids, reasons, states, first_locs, arrivals = zip(*notes, strict=True)
        counts = [len(locs) for locs in first_locs]
        page_ids = np.concatenate(first_locs) // self._page_size
        at = np.arange(self._written, self._written + len(page_ids)) % self._capacity
        self._written += len(page_ids)
        self._page_ids[at] = page_ids
        self._plan_ids[at] = np.repeat(plan_ids, counts)
        self._reasons[at] = np.repeat(reasons, counts)
        self._states[at] = np.repeat(states, counts)
        self._arrivals[at] = np.concatenate(
            [np.broadcast_to(who, count) for who, count in zip(arrivals, counts, strict=True)]
        )
