"""Bugs to plant: each replaces one method of the manager, or of the fake runner, by a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from cachesvc.manager import CacheManager
from cachesvc.page_pool import PagePool
from cachesvc.plan_stream import PlanStream, Standing
from cachesvc.request import FinishCause, ReqState
from cachesvc.rows import RowTable
from cachesvc.scheduler import Scheduler
from servicekit.plan import Refusal
from tests.cachesvc.fake_runner import FakeRunner

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]
MUTANTS: list[Mutant] = []


def mutant(plant: Mutant) -> Mutant:
    MUTANTS.append(plant)
    return plant


@mutant
def an_abort_frees_the_row_twice(patch: Patch) -> None:
    right = Scheduler.end

    def wrong(self, req):
        if req.state is ReqState.RUNNING:
            self._ended.append(req.table_idx)
        right(self, req)

    patch.setattr(Scheduler, "end", wrong)


@mutant
def late_results_of_a_preempted_row_count_after_readmission(patch: Patch) -> None:
    right = CacheManager.open_row
    patch.setattr(CacheManager, "open_row", lambda self, req, _: right(self, req, 1))


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
def the_oldest_is_preempted(patch: Patch) -> None:
    right = Scheduler._preempt_youngest

    def wrong(self):
        self._running.append(self._running.pop(0))
        return right(self)

    patch.setattr(Scheduler, "_preempt_youngest", wrong)


@mutant
def a_preempted_request_forgets_what_it_sampled(patch: Patch) -> None:
    patch.setattr(RowTable, "output_ids", lambda self, idx: self.ids[idx, :0].copy())


@mutant
def the_prompt_of_a_readmitted_request_grows(patch: Patch) -> None:
    right = Scheduler._admit

    def wrong(self, prefill, budget, opened, writes):
        prefill = right(self, prefill, budget, opened, writes)
        rows = self.manager.rows
        opened[:] = [replace(row, prompt_len=int(rows.known_len[row.table_idx])) for row in opened]
        return prefill

    patch.setattr(Scheduler, "_admit", wrong)


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


@mutant
def a_full_pool_ends_a_request_before_its_outstanding_results(patch: Patch) -> None:
    def wrong(self, idx, closed):
        self.finish(self.manager.rows.req[idx], FinishCause.CACHE_FULL)
        closed.extend(self._close_ended())

    patch.setattr(Scheduler, "_end_when_alone", wrong)


@mutant
def a_request_gets_one_token_more_than_it_asked_for(patch: Patch) -> None:
    right = RowTable.open

    def wrong(self, req, generation):
        idx = right(self, req, generation)
        self.limit_len[idx] += self.limit_len[idx] < self.ids.shape[1]
        return idx

    patch.setattr(RowTable, "open", wrong)


@mutant
def stop_tokens_of_the_former_holder_of_a_row_stay(patch: Patch) -> None:
    right = RowTable.open

    def wrong(self, req, generation):
        idx = self._unused[-1]
        former = self.stop_ids[idx].copy()
        right(self, req, generation)
        if not len(req.stop_token_ids):
            self.stop_ids[idx] = former
        return idx

    patch.setattr(RowTable, "open", wrong)


@mutant
def prefill_takes_no_notice_of_the_budget(patch: Patch) -> None:
    right = Scheduler._admit
    patch.setattr(
        Scheduler,
        "_admit",
        lambda self, prefill, budget, opened, writes: right(self, prefill, 64, opened, writes),
    )


@mutant
def who_comes_last_is_admitted_first(patch: Patch) -> None:
    def wrong(self, req):
        self._waiting.insert(0, req)

    patch.setattr(Scheduler, "submit", wrong)
