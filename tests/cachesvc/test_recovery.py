"""What the manager does when the stream drops, the runner dies, or a plan is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cachesvc.core import Core
from cachesvc.limits import Limits
from cachesvc.request import FinishCause
from servicekit.errors import FailedPrecondition, Reason
from tests.cachesvc.builders import attached_core, describe, ints, submission
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.wire import Wire, answer, wire, wire_in_motion


def boot(joined: Wire, **changes: object) -> None:
    joined.cut()
    joined.runner = FakeRunner(describe(**changes), "boot-2")


class TestAttach:
    def test_a_fresh_manager_knows_no_life_and_any_model(self) -> None:
        request = Core(Limits(step_budget_tokens=1, credits=1)).attach_request()
        assert (request.protocol_version, request.boot_id) == (1, "")
        assert request.last_result_plan_id is None
        assert request.model_fingerprint == ""
        assert len(request.manager_id) == 16

    def test_a_manager_names_the_life_it_knows_and_the_last_result_it_holds(self) -> None:
        joined = wire_in_motion()
        request = joined.core.attach_request()
        assert (request.boot_id, request.last_result_plan_id) == ("boot-1", 1)
        assert request.model_fingerprint == "tiny"

    def test_a_manager_sends_a_plan_that_resets_rows_even_without_work(self) -> None:
        plan = attached_core().next_plan()
        assert plan is not None
        assert plan.reset_rows
        assert not len(plan.step_rows)

    def test_another_model_is_refused_and_nothing_is_attached(self) -> None:
        joined = wire_in_motion()
        boot(joined, model_fingerprint="another")
        with pytest.raises(FailedPrecondition) as caught:
            joined.attach()
        assert caught.value.reason is Reason.FINGERPRINT_MISMATCH
        assert "another" in caught.value.message
        assert "tiny" in caught.value.message
        assert not joined.core.serving


class TestADroppedStream:
    def test_plans_that_were_not_read_are_sent_again_unchanged(self) -> None:
        joined = wire_in_motion()
        joined.cut()
        resent = joined.attach()
        assert [plan.plan_id for plan in resent] == [2, 3]
        assert resent[0] is joined.sent[1]
        assert resent[1] is joined.sent[2]
        assert joined.core.totals.resent_plans == 2

    def test_plans_that_were_executed_are_not_sent_again_but_their_results_are(self) -> None:
        joined = wire_in_motion()
        joined.deliver_plan()
        joined.deliver_plan()
        joined.cut()
        assert joined.attach() == []
        assert [one.plan_id for one in joined.answers] == [2, 3]
        joined.run_until_idle()
        assert joined.heard.tokens[1, 1] == answer()

    def test_nothing_is_sent_while_it_is_down_or_beyond_the_credits_afterwards(self) -> None:
        joined = wire_in_motion()
        joined.cut()
        assert joined.send() is None
        joined.attach()
        assert joined.send() is None

    @pytest.mark.parametrize("num_read", [0, 1, 2])
    @pytest.mark.parametrize("num_executed", [0, 1, 2])
    @pytest.mark.parametrize("num_heard", [0, 1, 2])
    def test_no_token_is_lost_or_doubled_wherever_it_drops(
        self, num_read: int, num_executed: int, num_heard: int
    ) -> None:
        joined = wire_in_motion()
        for _ in range(num_read):
            joined.deliver_plan()
        for _ in range(num_executed):
            joined.execute()
        for _ in range(min(num_heard, len(joined.answers))):
            joined.deliver_answer()
        joined.cut()
        joined.attach()
        joined.run_until_idle()
        assert joined.heard.tokens[1, 1] == answer()
        assert sum(plan.reset_rows for plan in joined.sent) == 1

    def test_a_refusal_that_was_lost_comes_again(self) -> None:
        joined = wire_in_motion()
        joined.plans[0] = replace(joined.plans[0], step_extend_lens=ints(0))
        joined.deliver_plan()
        joined.cut()
        joined.attach()
        joined.run_until_idle()
        assert joined.heard.tokens[1, 1] == answer()  # the plan was good when it came again


class TestAnotherLifeOfTheRunner:
    def test_every_request_is_computed_anew_with_the_tokens_it_has(self) -> None:
        joined = wire_in_motion()
        boot(joined)
        joined.attach()
        plan = joined.send()
        assert plan is not None
        assert plan.reset_rows
        assert (plan.plan_id, plan.acked_plan_id) == (1, 0)
        assert plan.literal_ids.tolist() == [1, 2, 3, answer()[0]]
        assert [row.prompt_len for row in plan.open_rows] == [3]
        joined.run_until_idle()
        assert joined.heard.tokens[1, 1] == answer()

    def test_requests_keep_their_order(self) -> None:
        joined = wire(num_rows=2)
        for key in (1, 2, 3):
            joined.core.submit(1, submission(key, max_tokens=5))
        joined.step()
        boot(joined, num_rows=2)
        joined.attach()
        plan = joined.send()
        assert plan is not None
        assert [row.seed for row in plan.open_rows] == [1, 2]

    def test_other_pages_and_rows_are_taken_as_they_are(self) -> None:
        joined = wire_in_motion()
        boot(joined, page_size=2, num_pages=5, num_rows=1)
        joined.attach()
        joined.run_until_idle()
        assert joined.heard.tokens[1, 1] == answer()
        assert joined.core.scheduler.manager.available_count == 5

    def test_a_request_that_no_longer_fits_fails_and_the_others_go_on(self) -> None:
        joined = wire_in_motion()
        joined.core.submit(1, submission(2, range(9), max_tokens=9))
        boot(joined, max_seq_len=12)
        joined.attach()
        joined.run_until_idle()
        assert joined.heard.cause(2) is FinishCause.FAILED
        failure = joined.heard.finished[1, 2].failure
        assert failure is not None
        assert "another runner came" in failure.message
        assert joined.heard.tokens[1, 1] == answer()
        assert joined.core.live.totals.failed == 1


class TestAStrangerInBetween:
    def stranger_drives(self, joined: Wire, num_plans: int) -> Wire:
        """Another manager takes the runner over and leaves its last result unacknowledged."""
        joined.cut()
        stranger = Wire(Core(Limits(step_budget_tokens=64, credits=2)), joined.runner)
        stranger.attach()
        stranger.core.submit(1, submission(9, max_tokens=9))
        for _ in range(num_plans):
            stranger.step()
        stranger.cut()
        return stranger

    def test_results_of_a_former_life_are_ignored_by_a_fresh_manager(self) -> None:
        """They were taken for a violation: the stream was dropped and an error logged at each
        restart of cachesvc.
        """
        joined = wire_in_motion()
        joined.deliver_plan()
        joined.cut()
        fresh = Wire(Core(Limits(step_budget_tokens=64, credits=2)), joined.runner)
        fresh.attach()
        assert [one.plan_id for one in fresh.answers] == [2]
        fresh.deliver_all()
        assert fresh.heard.tokens == {}

    def test_a_fresh_manager_goes_on_behind_the_plan_executed_last(self) -> None:
        joined = wire_in_motion()
        joined.deliver_plan()
        joined.cut()
        fresh = Wire(Core(Limits(step_budget_tokens=64, credits=2)), joined.runner)
        fresh.attach()
        plan = fresh.send()
        assert plan is not None
        assert (plan.plan_id, plan.acked_plan_id, plan.reset_rows) == (3, 2, True)

    def test_everything_is_computed_anew_in_the_same_life(self) -> None:
        joined = wire_in_motion()
        self.stranger_drives(joined, num_plans=3)
        assert joined.attach() == []
        plan = joined.send()
        assert plan is not None
        assert (plan.plan_id, plan.reset_rows) == (5, True)
        joined.run_until_idle()
        assert joined.heard.tokens[1, 1] == answer()

    def test_one_who_sent_no_plan_changes_nothing(self) -> None:
        joined = wire_in_motion()
        self.stranger_drives(joined, num_plans=0)
        assert [plan.plan_id for plan in joined.attach()] == [2, 3]
        joined.run_until_idle()
        assert joined.heard.tokens[1, 1] == answer()
