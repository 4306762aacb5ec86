"""Bugs to plant: each replaces one method of the manager, or of the fake runner, by a wrong one.

Here those of requests, rows and plans; those of pages and the prefix tree are in `page_mutants.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from cachesvc import admission
from cachesvc.core import Core
from cachesvc.ledger import ChangeReason
from cachesvc.live_requests import LiveRequests
from cachesvc.manager import CacheManager
from cachesvc.plan_stream import PlanStream, Standing
from cachesvc.request import FinishCause, ReqState
from cachesvc.rows import RowTable
from cachesvc.running import RunningRows
from cachesvc.scheduler import Scheduler
from cachesvc.waiting import WaitingQueue
from servicekit.plan import Refusal
from tests.cachesvc.fake_runner import FakeRunner

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]
MUTANTS: list[Mutant] = []


def mutant(plant: Mutant) -> Mutant:
    MUTANTS.append(plant)
    return plant


# How requests end


@mutant
def an_abort_frees_the_row_twice(patch: Patch) -> None:
    right = Scheduler.end

    def wrong(self, req, reason):
        if req.state is ReqState.RUNNING and reason is ChangeReason.ABORTED:
            self._ended.append((req.table_idx, reason))
        right(self, req, reason)

    patch.setattr(Scheduler, "end", wrong)


@mutant
def an_abort_in_the_finishing_step_frees_the_row_twice(patch: Patch) -> None:
    right = Scheduler.end

    def wrong(self, req, reason):
        if req.state is ReqState.ENDED:
            self._ended.append((req.table_idx, reason))
        right(self, req, reason)

    patch.setattr(Scheduler, "end", wrong)


@mutant
def an_abort_between_a_plan_and_its_result_leaves_the_row_open(patch: Patch) -> None:
    right = Scheduler.end

    def wrong(self, req, reason):
        idx = req.table_idx
        right(self, req, reason)
        if idx is not None and self.manager.rows.pending_len[idx]:
            self._ended = [ended for ended in self._ended if ended[0] != idx]

    patch.setattr(Scheduler, "end", wrong)


@mutant
def late_results_of_a_preempted_row_count_after_readmission(patch: Patch) -> None:
    right = CacheManager.open_row
    patch.setattr(CacheManager, "open_row", lambda self, req, _, match: right(self, req, 1, match))


@mutant
def late_results_of_an_ended_request_count(patch: Patch) -> None:
    right = Scheduler.apply_result

    def wrong(self, record, sampled_ids):
        rows = self.manager.rows
        live = rows.live
        rows.live = np.array([req is not None for req in rows.req])
        right(self, record, sampled_ids)
        rows.live = live

    patch.setattr(Scheduler, "apply_result", wrong)


@mutant
def a_full_pool_ends_a_request_before_its_outstanding_results(patch: Patch) -> None:
    def wrong(self, idx, built):
        self.finish(self.manager.rows.req[idx], FinishCause.CACHE_FULL)
        built.closed.extend(self._close_ended())

    patch.setattr(Scheduler, "_end_when_alone", wrong)


@mutant
def a_request_gets_one_token_more_than_it_asked_for(patch: Patch) -> None:
    right = RowTable.open

    def wrong(self, *arguments):
        idx = right(self, *arguments)
        self.limit_len[idx] += self.limit_len[idx] < self.ids.shape[1]
        return idx

    patch.setattr(RowTable, "open", wrong)


@mutant
def stop_tokens_of_the_former_holder_of_a_row_stay(patch: Patch) -> None:
    right = RowTable.open

    def wrong(self, req, *arguments):
        former = self.stop_ids[self._unused[-1]].copy()
        idx = right(self, req, *arguments)
        if not len(req.stop_token_ids):
            self.stop_ids[idx] = former
        return idx

    patch.setattr(RowTable, "open", wrong)


@mutant
def a_request_waits_past_its_time(patch: Patch) -> None:
    patch.setattr(WaitingQueue, "expired", lambda self, now_s: [])


@mutant
def a_full_queue_takes_one_more(patch: Patch) -> None:
    right = Core._check_room
    patch.setattr(Core, "_check_room", lambda self, num_waiting: right(self, num_waiting - 1))


# Who comes first


@mutant
def the_first_in_rank_is_preempted(patch: Patch) -> None:
    right = RunningRows.pop_last

    def wrong(self):
        self._rows.append(self._rows.pop(0))
        return right(self)

    patch.setattr(RunningRows, "pop_last", wrong)


@mutant
def who_comes_last_is_admitted_first(patch: Patch) -> None:
    def wrong(self, req):
        self._reqs.insert(0, req)

    patch.setattr(WaitingQueue, "add", wrong)


@mutant
def a_low_priority_goes_before_a_high_one(patch: Patch) -> None:
    right = LiveRequests.begin

    def wrong(self, session_id, submission, *arguments):
        req = right(self, session_id, submission, *arguments)
        at, arrival = req.rank
        req.rank = (at + 2 * submission.priority * self._aging_s, arrival)
        return req

    patch.setattr(LiveRequests, "begin", wrong)


@mutant
def who_waits_does_not_age(patch: Patch) -> None:
    right = LiveRequests.begin

    def wrong(self, session_id, submission, *arguments):
        req = right(self, session_id, submission, *arguments)
        req.rank = (-submission.priority, req.arrival)
        return req

    patch.setattr(LiveRequests, "begin", wrong)


@mutant
def a_preempted_request_goes_behind_newcomers(patch: Patch) -> None:
    right = Scheduler._put_back

    def wrong(self, idx):
        req = self._req(idx)
        req.rank = (req.rank[0] + 1, req.arrival)
        return right(self, idx)

    patch.setattr(Scheduler, "_put_back", wrong)


@mutant
def a_further_choice_does_not_wait_for_the_prompt_of_the_first(patch: Patch) -> None:
    patch.setattr(admission, "is_shared", lambda first, manager: True)


# What a request is told to compute


@mutant
def a_preempted_request_forgets_what_it_sampled(patch: Patch) -> None:
    patch.setattr(RowTable, "output_ids", lambda self, idx: self.ids[idx, :0].copy())


@mutant
def the_prompt_of_a_readmitted_request_grows(patch: Patch) -> None:
    right = Scheduler._admit

    def wrong(self, budget, built, *, preempted):
        right(self, budget, built, preempted=preempted)
        known_len = self.manager.rows.known_len
        grown = [replace(row, prompt_len=int(known_len[row.table_idx])) for row in built.opened]
        built.opened[:] = grown

    patch.setattr(Scheduler, "_admit", wrong)


@mutant
def prefill_takes_no_notice_of_the_budget(patch: Patch) -> None:
    right = Scheduler._admit

    def wrong(self, budget, built, *, preempted):
        budget.left = budget._long_left = 64
        right(self, budget, built, preempted=preempted)

    patch.setattr(Scheduler, "_admit", wrong)


# The plan stream


@mutant
def the_last_result_is_not_sent_again_at_attach(patch: Patch) -> None:
    right = FakeRunner._results_to_send
    patch.setattr(FakeRunner, "_results_to_send", lambda self: right(self)[:-1])


@mutant
def results_are_acknowledged_when_their_plan_is_sent(patch: Patch) -> None:
    right = PlanStream.number

    def wrong(self, step):
        plan = replace(right(self, step), acked_plan_id=self.last_plan_id)
        self._sent[-1] = self._sent[-1]._replace(plan=plan)
        return plan

    patch.setattr(PlanStream, "number", wrong)


@mutant
def plans_sent_after_a_refused_one_are_kept(patch: Patch) -> None:
    right = PlanStream.on_refusal

    def wrong(self, refusal):
        later = list(self._sent)[1:]
        record = right(self, refusal)
        self._sent.extend(later)
        return record

    patch.setattr(PlanStream, "on_refusal", wrong)


@mutant
def plans_after_a_refused_one_are_not_dropped_by_the_runner(patch: Patch) -> None:
    right = FakeRunner.take

    def wrong(self, plan):
        self._dropping = False
        right(self, plan)

    patch.setattr(FakeRunner, "take", wrong)


@mutant
def a_refusal_overtakes_results(patch: Patch) -> None:
    def wrong(self, refusal: Refusal) -> None:
        self._queue.appendleft(refusal)

    patch.setattr(FakeRunner, "_put_refusal", wrong)


@mutant
def executed_plans_are_sent_again(patch: Patch) -> None:
    right = PlanStream.plans_to_resend
    patch.setattr(PlanStream, "plans_to_resend", lambda self, last: right(self, last - 1))


@mutant
def plans_that_were_lost_are_not_sent_again(patch: Patch) -> None:
    patch.setattr(PlanStream, "plans_to_resend", lambda self, last: [])


@mutant
def another_life_of_the_runner_goes_unnoticed(patch: Patch) -> None:
    right = PlanStream.on_attached

    def wrong(self, attached):
        return right(self, replace(attached, boot_id=self.boot_id or attached.boot_id))

    patch.setattr(PlanStream, "on_attached", wrong)


@mutant
def a_stranger_in_between_goes_unnoticed(patch: Patch) -> None:
    right = PlanStream.on_attached

    def wrong(self, attached):
        return right(self, replace(attached, last_manager_id=self.manager_id))

    patch.setattr(PlanStream, "on_attached", wrong)


@mutant
def results_of_a_former_life_count(patch: Patch) -> None:
    right = PlanStream.on_attached

    def wrong(self, attached):
        standing = right(self, attached)
        if standing is Standing.STARTED_OVER:
            self._last_former_plan_id = 0
        return standing

    patch.setattr(PlanStream, "on_attached", wrong)


@mutant
def the_first_plan_of_a_life_does_not_reset_rows(patch: Patch) -> None:
    right = PlanStream.number
    patch.setattr(
        PlanStream, "number", lambda self, step: replace(right(self, step), reset_rows=False)
    )
