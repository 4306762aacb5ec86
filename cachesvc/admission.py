"""Which waiting requests get a row in a step, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterator

from cachesvc.manager import CacheManager
from cachesvc.page_table import TableWrite
from cachesvc.prefill import PrefillBudget
from cachesvc.request import Req, ReqState
from cachesvc.story import Admission, Stories, Wait, WaitCause, passed_over
from cachesvc.waiting import WaitingQueue

LOOK_AHEAD = 64  # requests that one step passes over at most


class Admitter:
    """Admits requests of `waiting` in order of rank, until one has to wait: all behind it do too.

    A request that waits for something that need not hold up others is passed over instead.
    """

    def __init__(self, waiting: WaitingQueue, stories: Stories) -> None:
        self._waiting = waiting
        self._stories = stories
        self._openings = 0

    def admit(
        self, manager: CacheManager, budget: PrefillBudget, *, preempted: bool
    ) -> Iterator[tuple[Req, TableWrite]]:
        """Give rows to requests, one after the other: on what is cached of them, with pages for all
        their known ids, and a part of the budget. Yields each with what is to be written for it.
        """
        passed = 0
        while passed < min(len(self._waiting), LOOK_AHEAD):
            req = self._waiting[passed]
            if self._passes_over(req, manager, budget):
                passed += 1
                continue
            write = self._admit_one(req, manager, budget, preempted=preempted)
            if write is None:
                return
            yield req, write

    def _passes_over(self, req: Req, manager: CacheManager, budget: PrefillBudget) -> bool:
        if req.first_choice is not None and not is_shared(req.first_choice, manager):
            cause, behind = WaitCause.FIRST_CHOICE, req.first_choice.arrival
        elif not budget.admits(req.known_len):
            cause, behind = WaitCause.LONG_PREFILLS, None
        else:
            return False
        plan_id = manager.ledger.plan_id
        passed_over(req.story, Wait(req.arrival, cause, plan_id, plan_id, behind, 0))
        return True

    def _admit_one(
        self, req: Req, manager: CacheManager, budget: PrefillBudget, *, preempted: bool
    ) -> TableWrite | None:
        plan_id = manager.ledger.plan_id
        if preempted:
            self._waits(req, WaitCause.PREEMPTING, plan_id)
            return None
        if not manager.rows.unused_count:
            self._waits(req, WaitCause.NO_ROW, plan_id)
            return None
        if budget.left <= 0:
            self._waits(req, WaitCause.NO_BUDGET, plan_id)
            return None
        match = manager.find_prefix(req)
        lacking = manager.lacking_pages(req, match)
        if lacking > 0:
            self._waits(req, WaitCause.NO_PAGES, plan_id, lacking)
            return None
        miss = manager.miss(req, match)
        self._openings += 1
        idx, write = manager.open_row(req, self._openings, match)
        self._waiting.remove(req)
        req.state, req.table_idx = ReqState.RUNNING, idx
        cached_len = int(manager.rows.cached_len[idx])
        req.story.admitted(Admission(plan_id, idx, cached_len, miss))
        budget.ask(idx, req.known_len - cached_len)
        return write

    def _waits(self, req: Req, cause: WaitCause, plan_id: int, lacking: int = 0) -> None:
        self._stories.head_waited(Wait(req.arrival, cause, plan_id, plan_id, None, lacking))


def is_shared(first: Req, manager: CacheManager) -> bool:
    """Whether the full pages of a first choice's prompt are in the tree, or never will be."""
    if first.state is not ReqState.RUNNING:
        return first.state is ReqState.ENDED
    rows, idx, page_size = manager.rows, first.table_idx, manager.page_size
    assert idx is not None
    prompt_len = len(first.prompt_ids)
    is_sent = bool(rows.cached_len[idx] >= prompt_len)
    return is_sent and bool(rows.num_tree_pages[idx] >= prompt_len // page_size)
