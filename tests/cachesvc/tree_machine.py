"""Random histories of a prefix tree, checked against a dict of pages."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from cachesvc.eviction_order import LeastRecentlyUsed
from cachesvc.prefix_node import PrefixNode
from cachesvc.prefix_tree import TreeError
from tests.cachesvc.tree_model import ModelRow, Page, TreeModel
from tests.cachesvc.tree_world import LowestPageFirst, TreeWorld, unpacked

NUM_PAGES = 16
TOKENS = st.builds(
    lambda beginning, tail: beginning + tail,
    st.sampled_from(([], [0] * 4, [0, 1] * 2, [0] * 8)),
    st.lists(st.integers(0, 1), max_size=6),
)
SALTS = st.sampled_from(("", "", "salt"))
PICKS = st.integers(0, 30)


class Row(NamedTuple):
    """A row as both sides have it."""

    of_model: ModelRow
    tail: PrefixNode


class TreeMachine(RuleBasedStateMachine):
    world: TreeWorld

    @initialize(page_size=st.sampled_from((1, 2, 4)), max_node_tokens=st.sampled_from((4, 4096)))
    def start(self, page_size: int, max_node_tokens: int) -> None:
        self.world = TreeWorld(page_size, NUM_PAGES, max_node_tokens=max_node_tokens)
        self.model = TreeModel()
        self.rows: list[Row] = []

    def _pages(self, ids: list[int]) -> list[Page]:
        page_size = self.world.page_size
        begins = range(0, len(ids) - page_size + 1, page_size)
        return [tuple(ids[at : at + page_size]) for at in begins]

    def _unused_locs(self, count: int) -> list[int]:
        page_size = self.world.page_size
        in_use = set(self.model.locs_in_use())
        locs = [page_id * page_size for page_id in range(NUM_PAGES)]
        return [loc for loc in locs if loc not in in_use][:count]

    @rule(ids=TOKENS, salt=SALTS)
    def match(self, ids: list[int], salt: str) -> None:
        before = self.world.nodes
        assert self.world.hit(ids, salt) == self.model.match(salt, self._pages(ids))
        assert self.world.nodes == before

    @rule(ids=TOKENS, salt=SALTS)
    def lock(self, ids: list[int], salt: str) -> None:
        match = self.world.match(ids, salt)
        could_go = self.world.tree.evictable_count
        were_evictable = self.world.tree.evictable_in(match)
        tail = self.world.tree.lock(match)
        row = self.model.lock(salt, self._pages(ids))
        assert len(row.pages) == match.num_pages
        assert self.world.tree.evictable_count == could_go - were_evictable
        self.rows.append(Row(row, tail))

    @rule(ids=TOKENS, salt=SALTS)
    def come_and_go(self, ids: list[int], salt: str) -> None:
        """A request as it is most often: what is not cached of its tokens is, once it ended."""
        self.lock(ids, salt)
        self._insert(len(self.rows) - 1, self._pages(ids)[len(self.rows[-1].of_model.pages) :])
        self.unlock(len(self.rows) - 1)

    @precondition(lambda self: self.rows)
    @rule(pick=PICKS, ids=TOKENS)
    def insert(self, pick: int, ids: list[int]) -> None:
        self._insert(pick % len(self.rows), self._pages(ids))

    def _insert(self, nth: int, pages: list[Page]) -> None:
        row, tail = self.rows[nth]
        own = self._unused_locs(len(pages))
        pages = pages[: len(own)]
        if not pages:
            return
        flat = [token_id for page in pages for token_id in page]
        inserted = self.world.insert(tail, flat, own)
        expected = self.model.insert(row, pages, own)
        after = list(own)
        for first, locs in inserted.duplicates:
            after[first : first + len(locs) // 4] = unpacked(locs)
        assert after == expected
        num_new = len(inserted.shared) // 4
        assert unpacked(inserted.shared) == own[len(own) - num_new :] == after[len(own) - num_new :]
        self.rows[nth] = Row(row, inserted.tail)

    @precondition(lambda self: self.rows)
    @rule(pick=PICKS)
    def unlock(self, pick: int) -> None:
        row, tail = self.rows.pop(pick % len(self.rows))
        assert unpacked(self.world.tree.unlock(tail)) == self.model.unlock(row)

    @rule(pick=PICKS)
    def unlock_what_nobody_holds(self, pick: int) -> None:
        unheld = [node for node in self.world.tree.nodes() if node.ref_count == 0]
        if unheld:
            with pytest.raises(TreeError, match="is unlocked and not locked"):
                self.world.tree.unlock(unheld[pick % len(unheld)])

    @precondition(lambda self: self.world.tree.evictable_count)
    @rule(pick=PICKS)
    def evict(self, pick: int) -> None:
        self._evict(pick, oldest=True)

    @precondition(lambda self: self.world.tree.evictable_count)
    @rule(pick=PICKS)
    def evict_in_another_order(self, pick: int) -> None:
        self.world.tree.set_order(LowestPageFirst())
        self._evict(pick, oldest=False)
        self.world.tree.set_order(LeastRecentlyUsed())

    def _evict(self, pick: int, *, oldest: bool) -> None:
        count = pick % self.world.tree.evictable_count + 1
        evicted = self.world.evict(count)
        assert len(evicted) == count
        for loc in evicted:
            self.model.evict(loc, oldest=oldest)

    @rule(more=st.integers(1, 3))
    def evict_too_much(self, more: int) -> None:
        could_go = self.world.tree.evictable_count
        with pytest.raises(TreeError, match=f"{could_go + more} pages to evict, {could_go} are"):
            self.world.tree.evict(could_go + more)

    @precondition(lambda self: self.model.cached)
    @rule(pick=PICKS)
    def cut(self, pick: int) -> None:
        locs = sorted(self.model.locs_in_use())
        bad_loc = locs[pick % len(locs)]
        gone = self.model.cut(bad_loc)
        self.rows = [row for row in self.rows if row.of_model in self.model.rows]
        tails = [row.tail for row in self.rows]
        cut = self.world.tree.cut_where(lambda locs: locs == bad_loc, tails)
        assert sorted(unpacked(cut)) == sorted(gone)
        self._take_over_the_times()

    def _take_over_the_times(self) -> None:
        """Rows that went in a cut were never unlocked, so when their pages were used last depends
        on how they lie in nodes.
        """
        times = {
            loc: node.last_used for node in self.world.tree.nodes() for loc in unpacked(node.locs)
        }
        for page in self.model.cached.values():
            page.last_used = times[page.loc]

    @invariant()
    def the_tree_is_the_model(self) -> None:
        holders = {
            self.model.cached[place].loc: count for place, count in self.model.holders().items()
        }
        in_tree = {
            loc: node.ref_count for node in self.world.tree.nodes() for loc in unpacked(node.locs)
        }
        assert in_tree == holders
        num_evictable = sum(count == 0 for count in holders.values())
        assert self.world.counts == (num_evictable, len(holders) - num_evictable)

    def teardown(self) -> None:
        for row in self.rows:
            self.world.tree.unlock(row.tail)
        assert self.world.counts == (len(self.model.cached), 0)
        self.world.evict(len(self.model.cached))
        assert list(self.world.tree.nodes()) == []
