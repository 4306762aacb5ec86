"""What the manager does with a refusal, an answer out of turn, and books that do not add up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cachesvc.plan_stream import ProtocolViolationError
from cachesvc.request import FinishCause
from servicekit.errors import Reason
from servicekit.plan import Refusal, Result
from tests.cachesvc.builders import ints, submission
from tests.cachesvc.wire import Wire, answer, wire, wire_in_motion


class TestARefusedPlan:
    def refuse_next(self, joined: Wire) -> None:
        """The oldest unread plan arrives with an extend_len of 0 for its first row."""
        plan = joined.plans[0]
        extend_lens = plan.step_extend_lens.copy()
        extend_lens[0] = 0
        joined.plans[0] = replace(plan, step_extend_lens=extend_lens)

    def test_the_request_it_names_fails_and_its_neighbour_goes_on(self) -> None:
        joined = wire_in_motion()
        joined.core.submit(1, submission(2, max_tokens=5))
        joined.deliver_all()
        joined.send()
        self.refuse_next(joined)
        joined.run_until_idle()
        assert joined.heard.cause(1) is FinishCause.FAILED
        failure = joined.heard.finished[1, 1].failure
        assert failure is not None
        assert failure.reason is Reason.PLAN_REFUSED
        assert "EXTEND_LEN" in failure.message
        assert joined.heard.tokens[1, 2] == answer(2)
        assert joined.core.live.totals.failed == joined.core.totals.refused == 1

    def test_the_next_plan_takes_its_number_and_resets_rows(self) -> None:
        joined = wire_in_motion()
        self.refuse_next(joined)
        joined.deliver_all()
        plan = joined.send()
        assert plan is not None
        assert (plan.plan_id, plan.acked_plan_id, plan.reset_rows) == (2, 1, True)

    def test_three_in_a_row_end_serving_until_a_result_comes(self) -> None:
        joined = wire()
        for key in (1, 2, 3):
            assert joined.core.serving
            joined.core.submit(1, submission(key))
            joined.send()
            self.refuse_next(joined)
            joined.deliver_all()
        assert not joined.core.serving
        joined.step()
        assert joined.core.serving

    @pytest.mark.parametrize("plan_id", [1, 3, 4])
    def test_a_refusal_of_another_plan_than_the_oldest_is_a_violation(self, plan_id: int) -> None:
        joined = wire_in_motion()
        with pytest.raises(ProtocolViolationError, match=f"refusal of plan {plan_id}, due is plan"):
            joined.core.refused(Refusal(plan_id, "STORE", "a store", (0,), 1))


class TestAnswersOutOfTurn:
    @pytest.mark.parametrize("plan_id", [1, 3])
    def test_a_result_of_another_plan_than_the_oldest_is_a_violation(self, plan_id: int) -> None:
        joined = wire_in_motion()
        with pytest.raises(
            ProtocolViolationError, match=f"result of plan {plan_id}, due is plan 2"
        ):
            joined.core.result(Result(plan_id, ints(5), 0, 0))

    def test_a_result_with_another_number_of_tokens_is_a_violation_that_is_survived(self) -> None:
        """The plan was forgotten before its result was looked at, so that no attach could heal."""
        joined = wire_in_motion()
        joined.deliver_plan()
        joined.execute()
        with pytest.raises(ProtocolViolationError, match="plan 2 samples 1 rows, its result has 2"):
            joined.core.result(Result(2, ints(5, 6), 0, 0))
        joined.cut()
        joined.attach()
        joined.run_until_idle()
        assert joined.heard.tokens[1, 1] == answer()


class TestBooksThatDoNotAddUp:
    def test_everything_is_computed_anew_and_no_token_is_lost(self) -> None:
        joined = wire_in_motion()
        joined.core.scheduler.manager.pool._free_count -= 1
        joined.deliver_all()
        plan = joined.send()
        assert plan is not None
        assert (plan.plan_id, plan.reset_rows) == (4, True)
        assert joined.core.scheduler.manager.pool.free_count == 6
        joined.run_until_idle()
        assert joined.heard.tokens[1, 1] == answer()
        assert joined.core.scheduler.manager.available_count == 8

    def test_results_under_way_then_are_dropped(self) -> None:
        joined = wire_in_motion(credits=3)
        joined.core.scheduler.manager.pool._free_count -= 1
        joined.send()
        joined.run_until_idle()
        assert joined.heard.tokens[1, 1] == answer()


class TestWhatARunnerMustNotSay:
    """What it says of plans decides what the tree keeps; what it sampled, what others hear."""

    @pytest.mark.parametrize("last_accepted", [0, 77])
    def test_that_another_plan_than_the_one_before_was_accepted_last(
        self, last_accepted: int
    ) -> None:
        joined = wire_in_motion()
        with pytest.raises(ProtocolViolationError, match="the last accepted one is said to be"):
            joined.core.refused(Refusal(2, "STORE", "a store", (0,), last_accepted))

    @pytest.mark.parametrize("token_id", [-1, 16])
    def test_a_token_outside_the_vocabulary_fails_its_request_and_no_other(
        self, token_id: int
    ) -> None:
        joined = wire(credits=1)
        for key in (1, 2):
            joined.core.submit(1, submission(key, max_tokens=5))
        plan = joined.send()
        assert plan is not None
        digest = joined.core.stream.due_digest
        joined.core.result(Result(plan.plan_id, ints(token_id, answer(2)[0]), 0, 0, digest))
        joined.deliver_plan()
        joined.execute()
        joined.answers.clear()  # that was its result
        joined.run_until_idle()
        assert joined.heard.cause(1) is FinishCause.FAILED
        assert joined.heard.tokens[1, 1] == []
        assert joined.heard.tokens[1, 2] == answer(2)
