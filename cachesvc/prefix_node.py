"""A stretch of pages in the prefix tree, and what the tree answers about one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from servicekit.plan import Int32Array

ID_BYTES = LOC_BYTES = 4  # both are int32


class PrefixNode:
    """Pages that follow each other in every sequence that has them. A root has none.

    `ids` and `locs` are int32 arrays in `bytes`: they compare at the speed of memory, and a part of
    one is a copy, so a split keeps nothing of its parent alive. A page is one of `locs`, its first
    loc, and `page_size` of `ids`.
    """

    __slots__ = ("children", "ids", "last_used", "locs", "parent", "ref_count")

    def __init__(self, parent: PrefixNode | None, ids: bytes, locs: bytes) -> None:
        self.parent = parent
        self.ids = ids
        self.locs = locs
        self.children: dict[bytes, PrefixNode] | None = None  # by the ids of their first page
        self.ref_count = 0  # rows whose path goes through here
        self.last_used = 0  # the tree's clock when its path was locked or unlocked last

    @property
    def num_pages(self) -> int:
        return len(self.locs) // LOC_BYTES

    @property
    def first_loc(self) -> int:
        return int.from_bytes(self.locs[:LOC_BYTES], "little", signed=True)

    @property
    def last_loc(self) -> int:
        """-1 for a root."""
        return last_loc(self.locs)

    def add_child(self, key: bytes, child: PrefixNode) -> None:
        if self.children is None:
            self.children = {}
        self.children[key] = child

    def remove_child(self, key: bytes) -> None:
        assert self.children is not None
        del self.children[key]
        if not self.children:
            self.children = None


class SaltedRoot(PrefixNode):
    """The root of all sequences with one cache_salt. Those with another share nothing with them."""

    __slots__ = ("salt",)

    def __init__(self, salt: str) -> None:
        super().__init__(None, b"", b"")
        self.salt = salt


class Match(NamedTuple):
    """The longest stretch of a sequence that is cached, in whole pages from its first id on."""

    salt: str
    num_pages: int
    node: PrefixNode | None  # the last one that matches as a whole; None: no root has this salt
    partial: PrefixNode | None  # its child that matches in part
    partial_pages: int

    @property
    def locs(self) -> Int32Array:
        """First locs of the pages, int32[num_pages]."""
        parts = (
            [] if self.partial is None else [self.partial.locs[: self.partial_pages * LOC_BYTES]]
        )
        node = self.node
        while node is not None:
            parts.append(node.locs)
            node = node.parent
        return np.frombuffer(b"".join(reversed(parts)), dtype=np.int32)

    @property
    def last_loc(self) -> int:
        """First loc of the last page; -1 when nothing matches."""
        if self.partial is not None:
            return last_loc(self.partial.locs[: self.partial_pages * LOC_BYTES])
        return -1 if self.node is None else self.node.last_loc


class Inserted(NamedTuple):
    """What an insert did with the pages that it was given."""

    tail: PrefixNode  # where the row's path ends now
    shared: bytes  # first locs that are in the tree now
    duplicates: list[tuple[int, bytes]]  # which page, counted from the first given, and the tree's


class Eviction(NamedTuple):
    """Pages at the end of a leaf that went."""

    locs: bytes  # first locs
    after_loc: int  # the page before them, which stays; -1: the root
    first_page_ids: bytes  # of the first page that went
    salt: str  # of the root, where they follow it; "" elsewhere


def last_loc(locs: bytes) -> int:
    """The last of int32 locs; -1 when there is none."""
    return int.from_bytes(locs[-LOC_BYTES:], "little", signed=True) if locs else -1


def first_difference(left: bytes, right: bytes) -> int:
    """Where two int32 arrays of one length differ first; their length when they do not."""
    if left == right:
        return len(left) // ID_BYTES
    differ = np.frombuffer(left, dtype=np.int32) != np.frombuffer(right, dtype=np.int32)
    return int(differ.argmax())
