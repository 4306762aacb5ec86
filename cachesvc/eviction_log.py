"""Who evicted what: asked when a request matches less than it might have."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cachesvc.prefix_node import LOC_BYTES, Eviction, Match

CAPACITY = 1 << 14


class Evicted(NamedTuple):
    """When pages were evicted, and for which request."""

    plan_id: int
    arrival: int


class EvictionLog:
    """The last evictions, by what they cut: the page that stayed, and the ids of the first page
    that went.
    """

    def __init__(self, filled_by: NDArray[np.int64], page_size: int) -> None:
        self._filled_by = filled_by  # by page: the plan that filled it last; read only
        self._page_size = page_size
        self._evicted: OrderedDict[tuple[int, str, bytes], Evicted] = OrderedDict()

    def note(self, evictions: list[Eviction], plan_id: int, arrivals: list[int]) -> None:
        """The plan evicts these, a page for each of the requests."""
        at = 0
        for eviction in evictions:
            place = (eviction.after_loc, eviction.salt, eviction.first_page_ids)
            self._evicted[place] = Evicted(plan_id, arrivals[at])
            self._evicted.move_to_end(place)
            at += len(eviction.locs) // LOC_BYTES
        while len(self._evicted) > CAPACITY:
            self._evicted.popitem(last=False)

    def find(self, match: Match, page_ids: bytes) -> Evicted | None:
        """The eviction of a page with these ids from where `match` ends, int32 in bytes."""
        after_loc = match.last_loc
        evicted = self._evicted.get((after_loc, match.salt if after_loc < 0 else "", page_ids))
        if evicted is None or after_loc < 0:
            return evicted
        was_here = self._filled_by[after_loc // self._page_size] < evicted.plan_id
        return evicted if was_here else None  # else that page holds other tokens since
