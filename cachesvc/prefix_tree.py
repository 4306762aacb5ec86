"""The prefix cache: a radix tree over full pages of known ids.

The form is that of SGLang's RadixAttention (Zheng et al., 2024), over pages instead of tokens. A
node holds at most `max_node_tokens`, so that no operation copies more than that. Nothing recurs;
`P` below is the number of pages that an operation is about, `D` the nodes on their path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from cachesvc.eviction_order import EvictionOrder, EvictionQueue
from cachesvc.prefix_node import (
    ID_BYTES,
    LOC_BYTES,
    Eviction,
    Inserted,
    Match,
    PrefixNode,
    SaltedRoot,
    first_difference,
)
from servicekit.plan import Int32Array

MAX_NODE_TOKENS = 4096


class TreeError(Exception):
    """The tree was asked for what it cannot do, or does not add up: never a user's mistake."""


class PrefixTree:
    """Owns the nodes and their reference counts.

    `evictable_count` and `locked_count` are pages of nodes that no row, or some row, holds.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        order: EvictionOrder,
        max_node_tokens: int = MAX_NODE_TOKENS,
    ) -> None:
        self.page_size = page_size
        self.evictable_count = 0
        self.locked_count = 0
        self._page_bytes = page_size * ID_BYTES
        self._max_node_pages = max(max_node_tokens // page_size, 1)
        self._clock = 0
        self._roots: dict[str, SaltedRoot] = {}
        self._leaves = EvictionQueue(num_pages, page_size, order)

    # Reading

    def match(self, ids: bytes, salt: str, most_pages: int) -> Match:
        """The longest cached stretch of `ids`, int32 in bytes, of at most `most_pages`. O(P + D).

        Nothing changes. Whoever is to compute a token asks for fewer pages than `ids` has tokens.
        """
        node: PrefixNode | None = self._roots.get(salt)
        if node is None:
            return Match(salt, 0, None, None, 0)
        page_bytes, at = self._page_bytes, 0
        end = most_pages * page_bytes
        while at < end and node.children is not None:
            child = node.children.get(ids[at : at + page_bytes])
            if child is None:
                break
            length = len(child.ids)
            if at + length > end or not ids.startswith(child.ids, at):
                pages = self._common_pages(child, ids, at, end)
                return Match(salt, at // page_bytes + pages, node, child, pages)
            at += length
            node = child
        return Match(salt, at // page_bytes, node, None, 0)

    def _common_pages(self, child: PrefixNode, ids: bytes, at: int, end: int) -> int:
        """How many pages of `child` are those of ids[at:end], in bytes; the first one is."""
        length = min(len(child.ids), end - at)
        return first_difference(child.ids[:length], ids[at : at + length]) // self.page_size

    def evictable_in(self, match: Match) -> int:
        """How many pages of a match are evictable, and would not be once it is locked. O(D)."""
        count = 0
        if match.partial is not None and match.partial.ref_count == 0:
            count = match.partial_pages
        node = match.node
        while node is not None and node.ref_count == 0:
            count += node.num_pages
            node = node.parent
        return count

    def nodes(self) -> Iterator[PrefixNode]:
        """Every node, roots included, parents first."""
        pending: list[PrefixNode] = list(self._roots.values())
        while pending:
            node = pending.pop()
            yield node
            if node.children is not None:
                pending.extend(node.children.values())

    # Holding

    def lock(self, match: Match) -> PrefixNode:
        """Hold a match: its pages are not evicted until `unlock`. Returns the end of the path. O(D)
        and a split at most. The match is fresh: nothing changed since it was made.
        """
        node = match.node
        if node is None:
            node = self._roots[match.salt] = SaltedRoot(match.salt)
        tail = node if match.partial is None else self._split(match.partial, match.partial_pages)
        self._clock += 1
        on_path: PrefixNode | None = tail
        while on_path is not None:
            if on_path.ref_count == 0:
                self._leaves.remove(on_path)
                self._move_to_locked(on_path.num_pages)
            on_path.ref_count += 1
            on_path.last_used = self._clock
            on_path = on_path.parent
        return tail

    def unlock(self, tail: PrefixNode) -> bytes:
        """Let a path go that a row held. Returns first locs of pages that became evictable. O(D).

        Errors: TreeError, with nothing changed, for a path that nobody holds.
        """
        if tail.ref_count < 1:
            raise TreeError(f"the path to first loc {tail.last_loc} is unlocked and not locked")
        self._clock += 1
        released: list[bytes] = []
        node: PrefixNode | None = tail
        while node is not None:
            node.ref_count -= 1
            node.last_used = self._clock
            if node.ref_count == 0:
                self._move_to_locked(-node.num_pages)
                released.append(node.locs)
                self._leaves.add(node)
            root, node = node, node.parent
        self._drop_if_empty(root)
        return b"".join(reversed(released))

    def _move_to_locked(self, num_pages: int) -> None:
        self.evictable_count -= num_pages
        self.locked_count += num_pages

    # Growing

    def insert(self, tail: PrefixNode, ids: bytes, locs: bytes) -> Inserted:
        """Put full pages behind the path that a row holds, and hold them too. O(P).

        Where the tree has the same ids already, its own pages stay and the row's are duplicates.
        """
        page_bytes, at = self._page_bytes, 0
        duplicates: list[tuple[int, bytes]] = []
        while at < len(ids):
            child = None
            if tail.children is not None:
                child = tail.children.get(ids[at : at + page_bytes])
            if child is None:
                first = at // page_bytes * LOC_BYTES
                return Inserted(
                    self._append(tail, ids[at:], locs[first:]), locs[first:], duplicates
                )
            pages = self._common_pages(child, ids, at, len(ids))
            tail = child if pages == child.num_pages else self._split(child, pages)
            if tail.ref_count == 0:
                self._leaves.remove(tail)
                self._move_to_locked(pages)
            tail.ref_count += 1
            tail.last_used = self._clock
            duplicates.append((at // page_bytes, tail.locs))
            at += pages * page_bytes
        return Inserted(tail, b"", duplicates)

    def _append(self, tail: PrefixNode, ids: bytes, locs: bytes) -> PrefixNode:
        """New pages behind `tail`, in it while it is the row's own leaf and has room."""
        self.locked_count += len(locs) // LOC_BYTES
        at = 0  # in pages
        if tail.ref_count == 1 and tail.children is None and tail.locs:
            at = min(self._max_node_pages - tail.num_pages, len(locs) // LOC_BYTES)
            tail.ids += ids[: at * self._page_bytes]
            tail.locs += locs[: at * LOC_BYTES]
        while at * LOC_BYTES < len(locs):
            end = at + self._max_node_pages
            child_ids = ids[at * self._page_bytes : end * self._page_bytes]
            child = PrefixNode(tail, child_ids, locs[at * LOC_BYTES : end * LOC_BYTES])
            child.ref_count, child.last_used = 1, self._clock
            tail.add_child(child_ids[: self._page_bytes], child)
            tail, at = child, end
        return tail

    def _split(self, node: PrefixNode, pages: int) -> PrefixNode:
        """Give the first `pages` of a node a node of their own above it, which is returned. The
        node itself keeps the rest, so paths that end in it still do.
        """
        at, parent = pages * self._page_bytes, _parent_of(node)
        upper = PrefixNode(parent, node.ids[:at], node.locs[: pages * LOC_BYTES])
        upper.ref_count, upper.last_used = node.ref_count, node.last_used
        self._leaves.remove(node)  # it begins with another page now
        node.ids, node.locs, node.parent = node.ids[at:], node.locs[pages * LOC_BYTES :], upper
        parent.add_child(upper.ids[: self._page_bytes], upper)
        upper.add_child(node.ids[: self._page_bytes], node)
        self._leaves.add(node)
        return upper

    # Shrinking

    def evict(self, count: int) -> list[Eviction]:
        """Take `count` pages out, leaf by leaf in the order of eviction, ends of leaves first.

        O(count log n). Errors: TreeError, with nothing changed, when fewer are evictable; or when
        the books are wrong.
        """
        if count > self.evictable_count:
            raise TreeError(f"{count} pages to evict, {self.evictable_count} are evictable")
        self.evictable_count -= count
        evictions: list[Eviction] = []
        while count > 0:
            leaf = self._leaves.pop()
            if leaf is None:
                raise TreeError(f"{count} pages to evict, and no leaf is evictable")
            num_pages = leaf.num_pages
            if num_pages <= count:
                evictions.append(self._remove_leaf(leaf))
            else:
                evictions.append(self._trim_leaf(leaf, num_pages - count))
            count -= num_pages
        return evictions

    def _remove_leaf(self, leaf: PrefixNode) -> Eviction:
        parent, key = _parent_of(leaf), leaf.ids[: self._page_bytes]
        _remove_child(parent, key)
        leaf.parent = None
        if parent.children is None:
            self._leaves.add(parent)
            self._drop_if_empty(parent)
        salt = parent.salt if isinstance(parent, SaltedRoot) else ""
        return Eviction(leaf.locs, parent.last_loc, key, salt)

    def _trim_leaf(self, leaf: PrefixNode, kept_pages: int) -> Eviction:
        """Take out the pages of a leaf from `kept_pages` on."""
        locs, at = leaf.locs[kept_pages * LOC_BYTES :], kept_pages * self._page_bytes
        first_page_ids = leaf.ids[at : at + self._page_bytes]
        leaf.ids, leaf.locs = leaf.ids[:at], leaf.locs[: kept_pages * LOC_BYTES]
        self._leaves.add(leaf)
        return Eviction(locs, leaf.last_loc, first_page_ids, "")

    def cut_where(
        self, is_bad: Callable[[Int32Array], np.ndarray], tails: Iterable[PrefixNode]
    ) -> bytes:
        """Take out every page for which `is_bad`, given first locs, and all behind it. Locks are
        counted anew: `tails` are where the paths of rows end, one for each row, outside of what
        goes. Returns first locs of what went.
        """
        gone: list[bytes] = []
        pending: list[PrefixNode] = list(self._roots.values())
        while pending:
            node = pending.pop()
            bad = np.flatnonzero(is_bad(np.frombuffer(node.locs, dtype=np.int32)))
            if not len(bad):
                pending.extend((node.children or {}).values())
                continue
            gone.append(self._prune(node, int(bad[0])))
        self._relock(tails)
        return b"".join(gone)

    def _prune(self, node: PrefixNode, kept_pages: int) -> bytes:
        """Take out the pages of a node from `kept_pages` on and every node behind it."""
        behind: list[PrefixNode] = list((node.children or {}).values())
        gone = [node.locs[kept_pages * LOC_BYTES :]]
        while behind:
            below = behind.pop()
            gone.append(below.locs)
            behind.extend((below.children or {}).values())
        key = node.ids[: self._page_bytes]
        node.children = None
        node.ids = node.ids[: kept_pages * self._page_bytes]
        node.locs = node.locs[: kept_pages * LOC_BYTES]
        if not kept_pages:
            _remove_child(_parent_of(node), key)
        return b"".join(gone)

    def set_order(self, order: EvictionOrder) -> None:
        """Evict in another order from now on. O(nodes)."""
        self._leaves.order = order
        self._recount()

    def _relock(self, tails: Iterable[PrefixNode]) -> None:
        for node in self.nodes():
            node.ref_count = 0
        for tail in tails:
            on_path: PrefixNode | None = tail
            while on_path is not None:
                on_path.ref_count += 1
                on_path = on_path.parent
        self._recount()

    def _recount(self) -> None:
        """Make counters and queue from the nodes."""
        self.evictable_count = self.locked_count = 0
        self._leaves.clear()
        for root in list(self._roots.values()):
            self._drop_if_empty(root)
        for node in self.nodes():
            if node.ref_count:
                self.locked_count += node.num_pages
            else:
                self.evictable_count += node.num_pages
                self._leaves.add(node)

    def _drop_if_empty(self, node: PrefixNode) -> None:
        """A root without pages and rows goes."""
        if not isinstance(node, SaltedRoot) or node.children is not None or node.ref_count:
            return
        if self._roots.get(node.salt) is node:
            del self._roots[node.salt]

    def check_integrity(self) -> None:
        """Recount. Errors: TreeError with the rule that does not hold, and where."""
        evictable = locked = 0
        for node in self.nodes():
            if len(node.ids) != node.num_pages * self._page_bytes:
                raise TreeError(f"{_told(node)} has {len(node.ids) // ID_BYTES} ids")
            below = 0
            for key, child in (node.children or {}).items():
                below += child.ref_count
                if child.parent is not node or child.ids[: self._page_bytes] != key:
                    raise TreeError(f"{_told(node)} has a child that belongs elsewhere")
            if node.ref_count < below:
                raise TreeError(
                    f"{_told(node)} is held {node.ref_count} times, its children {below}"
                )
            if node.ref_count:
                locked += node.num_pages
                continue
            evictable += node.num_pages
            if node.children is None and node.locs and node not in self._leaves:
                raise TreeError(f"{_told(node)} is an evictable leaf that no eviction would find")
        if (evictable, locked) != (self.evictable_count, self.locked_count):
            raise TreeError(
                f"counters say evictable {self.evictable_count}, locked {self.locked_count}; "
                f"the nodes say {evictable}, {locked}"
            )


def _parent_of(node: PrefixNode) -> PrefixNode:
    if node.parent is None:
        raise TreeError(f"{_told(node)} has no parent")
    return node.parent


def _remove_child(parent: PrefixNode, key: bytes) -> None:
    if parent.children is None or key not in parent.children:
        raise TreeError(f"{_told(parent)} lacks a child that says it is one")
    parent.remove_child(key)


def _told(node: PrefixNode) -> str:
    return f"the node of first locs {np.frombuffer(node.locs, dtype=np.int32).tolist()}"
