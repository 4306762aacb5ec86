"""Which waiting requests get a row in a step, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterator

from cachesvc.manager import CacheManager
from cachesvc.page_table import TableWrite
from cachesvc.prefill import PrefillBudget
from cachesvc.request import Req, ReqState
from cachesvc.story import Admission, Stories, WaitCause
from cachesvc.suspects import Suspects
from cachesvc.waiting import WaitingQueue


class Admitter:
    """Admits requests of `waiting` in order of rank, until one has to wait: all behind it do too.

    Two kinds wait for something that need not hold up others: long prompts, while as many as are
    allowed are computed, and further choices of a prompt that is not sent yet.
    """

    def __init__(self, waiting: WaitingQueue, stories: Stories, suspects: Suspects) -> None:
        self._waiting = waiting
        self._stories = stories
        self._suspects = suspects
        self._openings = 0

    def admit(
        self, manager: CacheManager, budget: PrefillBudget, *, preempted: bool
    ) -> Iterator[tuple[Req, TableWrite]]:
        """Give rows to requests, one after the other: on what is cached of them, with pages for all
        their known ids, and a part of the budget. Yields each with what is to be written for it.
        """
        for req, first in self._waiting.let_in(lambda first: is_shared(first, manager)):
            self._stories.let_in(req.story, first.arrival)
        long_may_go = True
        while True:
            long_may_go = long_may_go and self._long_may_go(manager, budget)
            candidate = self._next(long_may_go=long_may_go)
            if candidate is None:
                return
            write = self._admit_one(candidate, manager, budget, preempted=preempted)
            if write is None:
                return
            yield candidate, write

    def _next(self, *, long_may_go: bool) -> Req | None:
        short, long = self._waiting.first_short, self._waiting.first_long
        if long is None or not long_may_go:
            return short
        return long if short is None or long.rank < short.rank else short

    def _long_may_go(self, manager: CacheManager, budget: PrefillBudget) -> bool:
        """Whether the first long request may: with what is cached of it, it may be a short one."""
        req = self._waiting.first_long
        if req is None or budget.admits(req.known_len):
            return True
        if budget.admits(req.known_len - manager.find_prefix(req).num_pages * manager.page_size):
            return True
        self._stories.long_waited(req.arrival, WaitCause.LONG_PREFILLS)
        return False

    def _admit_one(
        self, req: Req, manager: CacheManager, budget: PrefillBudget, *, preempted: bool
    ) -> TableWrite | None:
        if preempted:
            self._waits(req, WaitCause.PREEMPTING)
            return None
        if not self._suspects.may_get_a_row(req, manager.rows):
            self._waits(req, WaitCause.SUSPECT)
            return None
        if not manager.rows.unused_count:
            self._waits(req, WaitCause.NO_ROW)
            return None
        if budget.left <= 0:
            self._waits(req, WaitCause.NO_BUDGET)
            return None
        match = manager.find_prefix(req)
        lacking = manager.lacking_pages(req, match)
        if lacking > 0:
            self._waits(req, WaitCause.NO_PAGES, lacking)
            return None
        miss = manager.miss(req, match)
        self._openings += 1
        idx, write = manager.open_row(req, self._openings, match)
        self._waiting.remove(req)
        req.state, req.table_idx = ReqState.RUNNING, idx
        self._suspects.admitted(req)
        cached_len = int(manager.rows.cached_len[idx])
        moment = self._stories.now
        req.story.admitted(Admission(moment.plan_id, idx, cached_len, miss, moment.step))
        budget.ask(idx, req.known_len - cached_len)
        return write

    def _waits(self, req: Req, cause: WaitCause, lacking_pages: int = 0) -> None:
        self._stories.all_waited(req.arrival, cause, lacking_pages)


def is_shared(first: Req, manager: CacheManager) -> bool:
    """Whether the full pages of a first choice's prompt are in the tree."""
    if first.state is not ReqState.RUNNING:
        return False
    rows, idx, page_size = manager.rows, first.table_idx, manager.page_size
    assert idx is not None
    prompt_len = len(first.prompt_ids)
    is_sent = bool(rows.cached_len[idx] >= prompt_len)
    return is_sent and bool(rows.num_tree_pages[idx] >= prompt_len // page_size)
