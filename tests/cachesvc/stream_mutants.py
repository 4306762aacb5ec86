"""Bugs to plant in the plan stream, at both ends."""

from __future__ import annotations

from dataclasses import replace

from cachesvc.plan_stream import PlanStream, Standing
from servicekit.plan import Refusal
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.mutants import Mutants, Patch

MUTANTS = Mutants()


@MUTANTS.plant
def the_last_result_is_not_sent_again_at_attach(patch: Patch) -> None:
    right = FakeRunner._results_to_send
    patch.setattr(FakeRunner, "_results_to_send", lambda self: right(self)[:-1])


@MUTANTS.plant
def results_are_acknowledged_when_their_plan_is_sent(patch: Patch) -> None:
    right = PlanStream.number

    def wrong(self, step, table_digest):
        plan = replace(right(self, step, table_digest), acked_plan_id=self.last_plan_id)
        self._sent[-1] = self._sent[-1]._replace(plan=plan)
        return plan

    patch.setattr(PlanStream, "number", wrong)


@MUTANTS.plant
def plans_sent_after_a_refused_one_are_kept(patch: Patch) -> None:
    right = PlanStream.on_refusal

    def wrong(self, refusal):
        later = list(self._sent)[1:]
        record = right(self, refusal)
        self._sent.extend(later)
        return record

    patch.setattr(PlanStream, "on_refusal", wrong)


@MUTANTS.plant
def plans_after_a_refused_one_are_not_dropped_by_the_runner(patch: Patch) -> None:
    right = FakeRunner.take

    def wrong(self, plan):
        self._dropping = False
        right(self, plan)

    patch.setattr(FakeRunner, "take", wrong)


@MUTANTS.plant
def a_refusal_overtakes_results(patch: Patch) -> None:
    def wrong(self, refusal: Refusal) -> None:
        self._queue.appendleft(refusal)

    patch.setattr(FakeRunner, "_put_refusal", wrong)


@MUTANTS.plant
def executed_plans_are_sent_again(patch: Patch) -> None:
    right = PlanStream.plans_to_resend
    patch.setattr(PlanStream, "plans_to_resend", lambda self, last: right(self, last - 1))


@MUTANTS.plant
def plans_that_were_lost_are_not_sent_again(patch: Patch) -> None:
    patch.setattr(PlanStream, "plans_to_resend", lambda self, last: [])


@MUTANTS.plant
def another_life_of_the_runner_goes_unnoticed(patch: Patch) -> None:
    right = PlanStream.on_attached

    def wrong(self, attached):
        return right(self, replace(attached, boot_id=self.boot_id or attached.boot_id))

    patch.setattr(PlanStream, "on_attached", wrong)


@MUTANTS.plant
def a_stranger_in_between_goes_unnoticed(patch: Patch) -> None:
    right = PlanStream.on_attached

    def wrong(self, attached):
        return right(self, replace(attached, last_manager_id=self.manager_id))

    patch.setattr(PlanStream, "on_attached", wrong)


@MUTANTS.plant
def results_of_a_former_life_count(patch: Patch) -> None:
    right = PlanStream.on_attached

    def wrong(self, attached):
        standing = right(self, attached)
        if standing is Standing.STARTED_OVER:
            self.former_last_executed = 0
        return standing

    patch.setattr(PlanStream, "on_attached", wrong)


@MUTANTS.plant
def the_first_plan_of_a_life_does_not_reset_rows(patch: Patch) -> None:
    right = PlanStream.number
    patch.setattr(
        PlanStream,
        "number",
        lambda self, *step: replace(right(self, *step), reset_rows=False),
    )
