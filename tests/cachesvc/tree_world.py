"""A prefix tree as a test speaks of it: lists of ids and of first locs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cachesvc.eviction_order import EvictionOrder, LeastRecentlyUsed
from cachesvc.prefix_node import Inserted, Match, PrefixNode
from cachesvc.prefix_tree import PrefixTree
from tests.cachesvc.builders import ints


class LowestPageFirst:
    """An eviction order that knows no time: among equal keys the lowest first loc goes first."""

    def key(self, node: PrefixNode) -> int:
        return 0


def packed(values: Sequence[int]) -> bytes:
    return ints(*values).tobytes()


def unpacked(values: bytes) -> list[int]:
    return np.frombuffer(values, dtype=np.int32).tolist()


class TreeWorld:
    """Pages of two tokens, unless said otherwise; rows lock, insert and unlock."""

    def __init__(
        self,
        page_size: int = 2,
        num_pages: int = 32,
        order: EvictionOrder | None = None,
        max_node_tokens: int = 4096,
    ) -> None:
        self.page_size = page_size
        self.tree = PrefixTree(num_pages, page_size, order or LeastRecentlyUsed(), max_node_tokens)

    def match(self, ids: Sequence[int], salt: str = "") -> Match:
        """What is cached of the full pages of `ids`."""
        return self.tree.match(packed(ids), salt, len(ids) // self.page_size)

    def hit(self, ids: Sequence[int], salt: str = "") -> list[int]:
        return self.match(ids, salt).locs.tolist()

    def lock(self, ids: Sequence[int] = (), salt: str = "") -> PrefixNode:
        return self.tree.lock(self.match(ids, salt))

    def insert(self, tail: PrefixNode, ids: Sequence[int], locs: Sequence[int]) -> Inserted:
        return self.tree.insert(tail, packed(ids), packed(locs))

    def cache(self, ids: Sequence[int], locs: Sequence[int], salt: str = "") -> None:
        """A row computes all of `ids` in pages `locs`, shares them, and ends."""
        tail = self.insert(self.lock((), salt), ids, locs).tail
        self.tree.unlock(tail)

    def evict(self, count: int) -> list[int]:
        """First locs in the order in which the pages go."""
        evictions = self.tree.evict(count)
        return [loc for eviction in evictions for loc in reversed(unpacked(eviction.locs))]

    @property
    def nodes(self) -> list[tuple[list[int], int]]:
        """First locs and ref_count of each node with pages, parents first."""
        return [(unpacked(node.locs), node.ref_count) for node in self.tree.nodes() if node.locs]

    @property
    def counts(self) -> tuple[int, int]:
        """Evictable and locked pages; the tree adds up."""
        self.tree.check_integrity()
        return self.tree.evictable_count, self.tree.locked_count
