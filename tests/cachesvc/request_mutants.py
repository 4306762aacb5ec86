"""Bugs to plant in how requests end, who comes first, and what a row is told to compute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cachesvc import admission
from cachesvc.core import Core
from cachesvc.ledger import ChangeReason
from cachesvc.live_requests import LiveRequests
from cachesvc.manager import CacheManager
from cachesvc.request import FinishCause, ReqState
from cachesvc.rows import RowTable
from cachesvc.running import RunningRows
from cachesvc.scheduler import Scheduler
from cachesvc.waiting import WaitingQueue
from tests.cachesvc.mutants import Mutants, Patch

MUTANTS = Mutants()


# How requests end


@MUTANTS.plant
def a_resumed_answer_that_is_complete_goes_on(patch: Patch) -> None:
    patch.setattr(Scheduler, "take", lambda self, req: self.waiting.add(req))


@MUTANTS.plant
def an_abort_frees_the_row_twice(patch: Patch) -> None:
    right = Scheduler.end

    def wrong(self, req, reason):
        if req.state is ReqState.RUNNING and reason is ChangeReason.ABORTED:
            self._ended.append((req.table_idx, reason))
        right(self, req, reason)

    patch.setattr(Scheduler, "end", wrong)


@MUTANTS.plant
def an_abort_in_the_finishing_step_frees_the_row_twice(patch: Patch) -> None:
    right = Scheduler.end

    def wrong(self, req, reason):
        if req.state is ReqState.ENDED:
            self._ended.append((req.table_idx, reason))
        right(self, req, reason)

    patch.setattr(Scheduler, "end", wrong)
    patch.setattr(Core, "_unended", lambda self, *request_key: self.live.find(*request_key))


@MUTANTS.plant
def an_abort_between_a_plan_and_its_result_leaves_the_row_open(patch: Patch) -> None:
    right = Scheduler.end

    def wrong(self, req, reason):
        idx = req.table_idx
        right(self, req, reason)
        if idx is not None and self.manager.rows.pending_len[idx]:
            self._ended = [ended for ended in self._ended if ended[0] != idx]

    patch.setattr(Scheduler, "end", wrong)


@MUTANTS.plant
def late_results_of_a_preempted_row_count_after_readmission(patch: Patch) -> None:
    right = CacheManager.open_row
    patch.setattr(CacheManager, "open_row", lambda self, req, _, match: right(self, req, 1, match))


@MUTANTS.plant
def late_results_of_an_ended_request_count(patch: Patch) -> None:
    right = Scheduler.apply_result

    def wrong(self, record, sampled_ids):
        rows = self.manager.rows
        live = rows.live
        rows.live = np.array([req is not None for req in rows.req])
        right(self, record, sampled_ids)
        rows.live = live

    patch.setattr(Scheduler, "apply_result", wrong)


@MUTANTS.plant
def a_full_pool_ends_a_request_before_its_outstanding_results(patch: Patch) -> None:
    def wrong(self, idx, built):
        self.finish(self.manager.rows.req[idx], FinishCause.CACHE_FULL)
        built.closed.extend(self._close_ended())

    patch.setattr(Scheduler, "_end_when_alone", wrong)


@MUTANTS.plant
def a_request_gets_one_token_more_than_it_asked_for(patch: Patch) -> None:
    right = RowTable.open

    def wrong(self, *arguments):
        idx = right(self, *arguments)
        self.limit_len[idx] += self.limit_len[idx] < self.ids.shape[1]
        return idx

    patch.setattr(RowTable, "open", wrong)


@MUTANTS.plant
def stop_tokens_of_the_former_holder_of_a_row_stay(patch: Patch) -> None:
    right = RowTable.open

    def wrong(self, req, *arguments):
        former = self.stop_ids[self._unused[-1]].copy()
        idx = right(self, req, *arguments)
        if not len(req.stop_token_ids):
            self.stop_ids[idx] = former
        return idx

    patch.setattr(RowTable, "open", wrong)


@MUTANTS.plant
def a_request_waits_past_its_time(patch: Patch) -> None:
    patch.setattr(WaitingQueue, "expired", lambda self, now_s: [])


@MUTANTS.plant
def a_full_queue_takes_one_more(patch: Patch) -> None:
    right = Core._check_room
    patch.setattr(Core, "_check_room", lambda self, num_waiting: right(self, num_waiting - 1))


# Who comes first


@MUTANTS.plant
def the_first_in_rank_is_preempted(patch: Patch) -> None:
    right = RunningRows.pop_last

    def wrong(self):
        self._rows.append(self._rows.pop(0))
        return right(self)

    patch.setattr(RunningRows, "pop_last", wrong)


@MUTANTS.plant
def who_comes_last_is_admitted_first(patch: Patch) -> None:
    def wrong(self, req):
        self._reqs.insert(0, req)

    patch.setattr(WaitingQueue, "add", wrong)


@MUTANTS.plant
def a_low_priority_goes_before_a_high_one(patch: Patch) -> None:
    right = LiveRequests.begin

    def wrong(self, session_id, submission, *arguments):
        req = right(self, session_id, submission, *arguments)
        at, arrival = req.rank
        req.rank = (at + 2 * submission.priority * self._aging_s, arrival)
        return req

    patch.setattr(LiveRequests, "begin", wrong)


@MUTANTS.plant
def who_waits_does_not_age(patch: Patch) -> None:
    right = LiveRequests.begin

    def wrong(self, session_id, submission, *arguments):
        req = right(self, session_id, submission, *arguments)
        req.rank = (-submission.priority, req.arrival)
        return req

    patch.setattr(LiveRequests, "begin", wrong)


@MUTANTS.plant
def a_preempted_request_goes_behind_newcomers(patch: Patch) -> None:
    right = Scheduler._put_back

    def wrong(self, idx):
        req = self._req(idx)
        req.rank = (req.rank[0] + 1, req.arrival)
        return right(self, idx)

    patch.setattr(Scheduler, "_put_back", wrong)


@MUTANTS.plant
def a_further_choice_does_not_wait_for_the_prompt_of_the_first(patch: Patch) -> None:
    patch.setattr(admission, "is_shared", lambda first, manager: True)


# What a request is told to compute


@MUTANTS.plant
def a_preempted_request_forgets_what_it_sampled(patch: Patch) -> None:
    patch.setattr(RowTable, "output_ids", lambda self, idx: self.ids[idx, :0].copy())


@MUTANTS.plant
def the_prompt_of_a_readmitted_request_grows(patch: Patch) -> None:
    right = Scheduler._admit

    def wrong(self, budget, built, *, preempted):
        right(self, budget, built, preempted=preempted)
        known_len = self.manager.rows.known_len
        grown = [replace(row, prompt_len=int(known_len[row.table_idx])) for row in built.opened]
        built.opened[:] = grown

    patch.setattr(Scheduler, "_admit", wrong)


@MUTANTS.plant
def prefill_takes_no_notice_of_the_budget(patch: Patch) -> None:
    right = Scheduler._admit

    def wrong(self, budget, built, *, preempted):
        budget.left = budget._long_left = 64
        right(self, budget, built, preempted=preempted)

    patch.setattr(Scheduler, "_admit", wrong)
