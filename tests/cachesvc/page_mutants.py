"""Bugs to plant in who owns which page: rows, sharing, healing."""

from __future__ import annotations

import numpy as np

from cachesvc import integrity
from cachesvc.ledger import ChangeReason
from cachesvc.manager import CacheManager
from cachesvc.page_pool import PagePool
from cachesvc.page_table import NO_WRITE, joined
from cachesvc.rows import RowTable
from cachesvc.scheduler import Scheduler
from tests.cachesvc.mutants import Mutants, Patch

MUTANTS = Mutants()


# Pages of rows


@MUTANTS.plant
def pages_are_given_out_a_plan_before_their_row_is_closed(patch: Patch) -> None:
    right = Scheduler._close_ended

    def wrong(self):
        told, self.late = getattr(self, "late", []), right(self)
        return told

    patch.setattr(Scheduler, "_close_ended", wrong)


@MUTANTS.plant
def the_free_counter_drifts_when_pages_come_back(patch: Patch) -> None:
    right = PagePool.free

    def wrong(self, first_locs):
        right(self, first_locs)
        if len(first_locs) > 1:
            self._free_count -= 1

    patch.setattr(PagePool, "free", wrong)


@MUTANTS.plant
def a_page_that_a_row_holds_is_given_to_another(patch: Patch) -> None:
    right = PagePool.allocate

    def wrong(self, count):
        taken = right(self, count)
        if count > 1:
            taken[-1] = taken[0]
        return taken

    patch.setattr(PagePool, "allocate", wrong)


@MUTANTS.plant
def a_row_stores_into_the_last_page_that_it_shares(patch: Patch) -> None:
    right = RowTable.open

    def wrong(self, *arguments):
        idx = right(self, *arguments)
        self.cached_len[idx] -= self.cached_len[idx] > 0
        return idx

    patch.setattr(RowTable, "open", wrong)


# Sharing and remaps


@MUTANTS.plant
def duplicates_are_freed_under_a_live_row(patch: Patch) -> None:
    right = CacheManager._remap

    def wrong(self, *arguments):
        before = self.page_table.locs.copy()
        right(self, *arguments)
        self.page_table.locs[:] = before
        return NO_WRITE

    patch.setattr(CacheManager, "_remap", wrong)


@MUTANTS.plant
def a_remap_is_told_to_nobody(patch: Patch) -> None:
    right = CacheManager._remap

    def wrong(self, *arguments):
        right(self, *arguments)
        return NO_WRITE

    patch.setattr(CacheManager, "_remap", wrong)


@MUTANTS.plant
def a_row_that_closes_in_a_plan_is_remapped_by_it(patch: Patch) -> None:
    right = Scheduler._preempt_last

    def wrong(self, first, lacking_pages, built):
        writes = dict(built.writes)
        right(self, first, lacking_pages, built)
        built.writes.update(writes)

    patch.setattr(Scheduler, "_preempt_last", wrong)


@MUTANTS.plant
def a_page_with_an_unknown_id_is_in_the_tree(patch: Patch) -> None:
    right = CacheManager.share

    def wrong(self, rows):
        known_len = self.rows.known_len.copy()
        self.rows.known_len[rows] = np.maximum(known_len, self.rows.cached_len)[rows]
        writes = right(self, rows)
        self.rows.known_len[:] = known_len
        return writes

    patch.setattr(CacheManager, "share", wrong)


@MUTANTS.plant
def a_page_is_in_the_tree_before_the_plan_that_fills_it_is_sent(patch: Patch) -> None:
    right = CacheManager.open_row

    def wrong(self, req, generation, match):
        idx, write = right(self, req, generation, match)
        cached_len, self.rows.cached_len[idx] = int(self.rows.cached_len[idx]), req.known_len
        remaps = self.share(np.array([idx]))
        self.rows.cached_len[idx] = cached_len
        return idx, joined([write, *remaps.values()])

    patch.setattr(CacheManager, "open_row", wrong)


@MUTANTS.plant
def pages_of_refused_plans_stay_in_the_tree(patch: Patch) -> None:
    right = CacheManager.drop_rows

    def wrong(self, last_plan_id, reason):
        right(self, 1 << 60 if reason is ChangeReason.REFUSED else last_plan_id, reason)

    patch.setattr(CacheManager, "drop_rows", wrong)


# Healing


@MUTANTS.plant
def a_page_claimed_twice_is_given_out_again(patch: Patch) -> None:
    right = integrity.heal

    def wrong(manager, found):
        victims = right(manager, found)
        manager.quarantined.clear()
        manager.free_the_rest()
        return victims

    patch.setattr("cachesvc.healing.heal", wrong)


@MUTANTS.plant
def who_touched_a_page_claimed_twice_goes_on(patch: Patch) -> None:
    right = integrity.recount

    def wrong(manager):
        return replace_claims(right(manager))

    def replace_claims(found):
        return found._replace(claimed_twice=np.zeros(0, dtype=np.intp), broken_rows=[])

    patch.setattr("cachesvc.healing.recount", wrong)


@MUTANTS.plant
def a_running_request_is_forgotten_when_rows_start_over(patch: Patch) -> None:
    def wrong(self):
        for idx in list(self._running)[:-1]:
            self._put_back(idx)
        self._running.clear()
        self._ended.clear()

    patch.setattr(Scheduler, "put_back", wrong)
