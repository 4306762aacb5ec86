"""Bugs to plant in what owns pages: pool, prefix tree, manager, and their healing."""

from __future__ import annotations

import numpy as np

from cachesvc import integrity
from cachesvc.eviction_order import EvictionQueue, LeastRecentlyUsed
from cachesvc.ledger import ChangeReason
from cachesvc.manager import CacheManager
from cachesvc.page_pool import PagePool
from cachesvc.page_table import NO_WRITE, joined
from cachesvc.prefix_tree import PrefixTree
from cachesvc.rows import RowTable
from cachesvc.scheduler import Scheduler
from tests.cachesvc.mutants import Mutant, Patch

PAGE_MUTANTS: list[Mutant] = []


def mutant(plant: Mutant) -> Mutant:
    PAGE_MUTANTS.append(plant)
    return plant


# Pages of rows


@mutant
def pages_are_given_out_a_plan_before_their_row_is_closed(patch: Patch) -> None:
    right = Scheduler._close_ended

    def wrong(self):
        told, self.late = getattr(self, "late", []), right(self)
        return told

    patch.setattr(Scheduler, "_close_ended", wrong)


@mutant
def the_free_counter_drifts_when_pages_come_back(patch: Patch) -> None:
    right = PagePool.free

    def wrong(self, first_locs):
        right(self, first_locs)
        if len(first_locs) > 1:
            self._free_count -= 1

    patch.setattr(PagePool, "free", wrong)


@mutant
def a_page_that_a_row_holds_is_given_to_another(patch: Patch) -> None:
    right = PagePool.allocate

    def wrong(self, count):
        taken = right(self, count)
        if count > 1:
            taken[-1] = taken[0]
        return taken

    patch.setattr(PagePool, "allocate", wrong)


@mutant
def a_row_stores_into_the_last_page_that_it_shares(patch: Patch) -> None:
    right = RowTable.open

    def wrong(self, *arguments):
        idx = right(self, *arguments)
        self.cached_len[idx] -= self.cached_len[idx] > 0
        return idx

    patch.setattr(RowTable, "open", wrong)


# Sharing and remaps


@mutant
def duplicates_are_freed_under_a_live_row(patch: Patch) -> None:
    right = CacheManager._remap

    def wrong(self, *arguments):
        before = self.page_table.locs.copy()
        right(self, *arguments)
        self.page_table.locs[:] = before
        return NO_WRITE

    patch.setattr(CacheManager, "_remap", wrong)


@mutant
def a_remap_is_told_to_nobody(patch: Patch) -> None:
    right = CacheManager._remap

    def wrong(self, *arguments):
        right(self, *arguments)
        return NO_WRITE

    patch.setattr(CacheManager, "_remap", wrong)


@mutant
def a_row_that_closes_in_a_plan_is_remapped_by_it(patch: Patch) -> None:
    right = Scheduler._preempt_last

    def wrong(self, first, lacking_pages, built):
        writes = dict(built.writes)
        right(self, first, lacking_pages, built)
        built.writes.update(writes)

    patch.setattr(Scheduler, "_preempt_last", wrong)


@mutant
def a_page_with_an_unknown_id_is_in_the_tree(patch: Patch) -> None:
    right = CacheManager.share

    def wrong(self, rows):
        known_len = self.rows.known_len.copy()
        self.rows.known_len[rows] = np.maximum(known_len, self.rows.cached_len)[rows]
        writes = right(self, rows)
        self.rows.known_len[:] = known_len
        return writes

    patch.setattr(CacheManager, "share", wrong)


@mutant
def a_page_is_in_the_tree_before_the_plan_that_fills_it_is_sent(patch: Patch) -> None:
    right = CacheManager.open_row

    def wrong(self, req, generation, match):
        idx, write = right(self, req, generation, match)
        cached_len, self.rows.cached_len[idx] = int(self.rows.cached_len[idx]), req.known_len
        remaps = self.share(np.array([idx]))
        self.rows.cached_len[idx] = cached_len
        return idx, joined([write, *remaps.values()])

    patch.setattr(CacheManager, "open_row", wrong)


@mutant
def pages_of_refused_plans_stay_in_the_tree(patch: Patch) -> None:
    right = CacheManager.drop_rows

    def wrong(self, last_plan_id, reason):
        right(self, 1 << 60 if reason is ChangeReason.REFUSED else last_plan_id, reason)

    patch.setattr(CacheManager, "drop_rows", wrong)


# Matching and holding


@mutant
def a_match_leaves_no_token_to_compute(patch: Patch) -> None:
    def wrong(self, req):
        most_pages = req.known_len // self.page_size
        return self.tree.match(req.known_ids, req.submission.cache_salt, most_pages)

    patch.setattr(CacheManager, "find_prefix", wrong)


@mutant
def a_match_takes_no_notice_of_the_salt(patch: Patch) -> None:
    right = PrefixTree.match
    patch.setattr(
        PrefixTree, "match", lambda self, ids, salt, most_pages: right(self, ids, "", most_pages)
    )


@mutant
def a_failed_admission_leaves_a_lock(patch: Patch) -> None:
    right = CacheManager.lacking_pages

    def wrong(self, req, match):
        lacking = right(self, req, match)
        if lacking > 0:
            self.tree.lock(match)
        return lacking

    patch.setattr(CacheManager, "lacking_pages", wrong)


@mutant
def pages_of_the_own_match_count_as_available(patch: Patch) -> None:
    patch.setattr(PrefixTree, "evictable_in", lambda self, match: 0)


@mutant
def a_split_forgets_who_holds_the_first_part(patch: Patch) -> None:
    right = PrefixTree._split

    def wrong(self, node, pages):
        upper = right(self, node, pages)
        upper.ref_count = 0
        return upper

    patch.setattr(PrefixTree, "_split", wrong)


@mutant
def a_path_is_unlocked_at_its_end_only(patch: Patch) -> None:
    right = PrefixTree.unlock

    def wrong(self, tail):
        parent, tail.parent = tail.parent, None
        released = right(self, tail)
        tail.parent = parent
        return released

    patch.setattr(PrefixTree, "unlock", wrong)


@mutant
def a_leaf_that_two_rows_hold_grows_in_place(patch: Patch) -> None:
    right = PrefixTree._append

    def wrong(self, tail, ids, locs):
        held, tail.ref_count = tail.ref_count, 1 if tail.locs else tail.ref_count
        end = right(self, tail, ids, locs)
        tail.ref_count = held
        return end

    patch.setattr(PrefixTree, "_append", wrong)


# Evicting


@mutant
def the_leaf_used_last_goes_first(patch: Patch) -> None:
    patch.setattr(LeastRecentlyUsed, "key", lambda self, node: 1_000_000 - node.last_used)


@mutant
def what_was_used_since_keeps_its_old_place(patch: Patch) -> None:
    first_use: dict[int, int] = {}

    def wrong(self, node):
        return first_use.setdefault(id(node), node.last_used)

    patch.setattr(LeastRecentlyUsed, "key", wrong)


@mutant
def a_node_that_a_row_holds_is_evicted(patch: Patch) -> None:
    patch.setattr(EvictionQueue, "remove", lambda self, node: None)


@mutant
def a_parent_is_evicted_before_its_child(patch: Patch) -> None:
    right = EvictionQueue.add

    def wrong(self, node):
        children, node.children = node.children, None
        right(self, node)
        node.children = children

    patch.setattr(EvictionQueue, "add", wrong)


@mutant
def pages_go_from_the_beginning_of_a_leaf(patch: Patch) -> None:
    right = PrefixTree._trim_leaf

    def wrong(self, leaf, kept_pages):
        gone = leaf.num_pages - kept_pages
        leaf.locs = leaf.locs[4 * gone :] + leaf.locs[: 4 * gone]
        return right(self, leaf, kept_pages)

    patch.setattr(PrefixTree, "_trim_leaf", wrong)


# Healing


@mutant
def a_page_claimed_twice_is_given_out_again(patch: Patch) -> None:
    right = integrity.heal

    def wrong(manager, found):
        victims = right(manager, found)
        manager.quarantined.clear()
        manager.free_the_rest()
        return victims

    patch.setattr("cachesvc.healing.heal", wrong)


@mutant
def who_touched_a_page_claimed_twice_goes_on(patch: Patch) -> None:
    right = integrity.recount

    def wrong(manager):
        return replace_claims(right(manager))

    def replace_claims(found):
        return found._replace(claimed_twice=np.zeros(0, dtype=np.intp), broken_rows=[])

    patch.setattr("cachesvc.healing.recount", wrong)


@mutant
def a_running_request_is_forgotten_when_rows_start_over(patch: Patch) -> None:
    def wrong(self):
        for idx in list(self._running)[:-1]:
            self._put_back(idx)
        self._running.clear()
        self._ended.clear()

    patch.setattr(Scheduler, "put_back", wrong)
