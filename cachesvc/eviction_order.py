"""Which cached pages go first when pages are short: one small part, to be swapped while serving."""

from __future__ import annotations

from typing import Protocol

from sortedcontainers import SortedList

from cachesvc.prefix_node import PrefixNode

_LOC_BITS = 32


class EvictionOrder(Protocol):
    """A pure ordering over the facts of a node."""

    def key(self, node: PrefixNode) -> int:
        """Lowest first, at least 0; among equal ones the leaf whose first page has the lowest loc
        goes first. It stays while the node is an evictable leaf.
        """


class LeastRecentlyUsed:
    """The leaf whose path was locked or unlocked longest ago goes first."""

    def key(self, node: PrefixNode) -> int:
        return node.last_used


class EvictionQueue:
    """Evictable leaves, and no others, by `order`. O(log n) each way.

    What is sorted are integers, key and first loc; `_leaf_at` has the node that begins with a page.
    """

    def __init__(self, num_pages: int, page_size: int, order: EvictionOrder) -> None:
        self.order = order
        self._page_size = page_size
        self._sorted: SortedList[int] = SortedList()
        self._leaf_at: list[PrefixNode | None] = [None] * num_pages

    def __contains__(self, node: PrefixNode) -> bool:
        page_id = node.first_loc // self._page_size if node.locs else len(self._leaf_at)
        return page_id < len(self._leaf_at) and self._leaf_at[page_id] is node

    def add(self, node: PrefixNode) -> None:
        """Take a node in if it is an evictable leaf. It is not here."""
        if node.ref_count or node.children is not None or not node.locs:
            return
        first_loc = node.first_loc
        self._leaf_at[first_loc // self._page_size] = node
        self._sorted.add(self.order.key(node) << _LOC_BITS | first_loc)

    def remove(self, node: PrefixNode) -> None:
        """Take a node out, if it is here, before anything of it changes."""
        if node in self:
            first_loc = node.first_loc
            self._leaf_at[first_loc // self._page_size] = None
            self._sorted.discard(self.order.key(node) << _LOC_BITS | first_loc)

    def pop(self) -> PrefixNode | None:
        """Take out the leaf that goes first; None when there is none."""
        if not self._sorted:
            return None
        entry: int = self._sorted.pop(0)
        first_page = (entry & ((1 << _LOC_BITS) - 1)) // self._page_size
        node, self._leaf_at[first_page] = self._leaf_at[first_page], None
        return node

    def clear(self) -> None:
        self._sorted.clear()
        self._leaf_at = [None] * len(self._leaf_at)
