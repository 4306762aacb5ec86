"""Which cached pages go first when pages are short: one small part, to be swapped while serving."""

from __future__ import annotations

import heapq
from typing import Protocol

from cachesvc.prefix_node import PrefixNode

_LOC_BITS = 32


class EvictionOrder(Protocol):
    """A pure ordering over the facts of a node."""

    def key(self, node: PrefixNode) -> int:
        """Lowest first, at least 0. It never falls while the node is in the tree; among equal ones
        the leaf whose first page has the lowest loc goes first.
        """


class LeastRecentlyUsed:
    """The leaf whose path was locked or unlocked longest ago goes first."""

    def key(self, node: PrefixNode) -> int:
        return node.last_used


class EvictionQueue:
    """Evictable leaves by `order`. A leaf that is locked, or gets children, may stay for the time.

    A heap of integers, key and first loc; an entry is only a hint. `_listed` says which leaf begins
    with a page, as long as an entry for it is in the heap.
    """

    def __init__(self, num_pages: int, page_size: int, order: EvictionOrder) -> None:
        self.order = order
        self._page_size = page_size
        self._heap: list[int] = []
        self._listed: list[PrefixNode | None] = [None] * num_pages

    def __contains__(self, node: PrefixNode) -> bool:
        return self._listed[node.first_loc // self._page_size] is node

    def add(self, node: PrefixNode) -> None:
        """Take a node in if it is an evictable leaf. O(log n)."""
        if node.ref_count or node.children is not None or not node.locs:
            return
        first_loc = node.first_loc
        if self._listed[first_loc // self._page_size] is None:
            self._listed[first_loc // self._page_size] = node
            heapq.heappush(self._heap, self.order.key(node) << _LOC_BITS | first_loc)

    def remove(self, node: PrefixNode) -> None:
        """Forget a node, if it is here."""
        if node in self:
            self._listed[node.first_loc // self._page_size] = None

    def pop(self) -> PrefixNode | None:
        """Take out the evictable leaf that goes first, None when there is none. O(log n) amortized:
        a hint that is out of date costs one more look, once.
        """
        while self._heap:
            entry = heapq.heappop(self._heap)
            first_page = (entry & ((1 << _LOC_BITS) - 1)) // self._page_size
            node = self._listed[first_page]
            if node is None:
                continue
            self._listed[first_page] = None
            if node.ref_count or node.children is not None:
                continue  # it comes back when it is an evictable leaf again
            if self.order.key(node) == entry >> _LOC_BITS:
                return node
            self.add(node)  # it was used since
        return None

    def clear(self) -> None:
        self._heap.clear()
        self._listed = [None] * len(self._listed)
