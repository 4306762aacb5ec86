"""What a step holds: who computes, how much, in which order. No faults."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cachesvc.core import Core
from cachesvc.request import FinishCause
from servicekit.plan import Plan
from servicekit.plan_codec import encode_plan
from tests.cachesvc.builders import attached_core, describe, submission
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.truth import truth_of
from tests.cachesvc.wire import Wire, wire


def plan_of(core: Core) -> Plan:
    plan = core.next_plan()
    assert plan is not None
    return plan


def steps_of(plan: Plan) -> list[tuple[int, int, int, int, bool]]:
    """(row, cached_len, extend_len, num_literals, samples) of each row, in order."""
    return list(
        zip(
            plan.step_rows.tolist(),
            plan.step_cached_lens.tolist(),
            plan.step_extend_lens.tolist(),
            plan.step_num_literals.tolist(),
            plan.step_samples.tolist(),
            strict=True,
        )
    )


def test_a_first_plan_resets_rows_and_prefills_the_whole_prompt() -> None:
    core = attached_core()
    core.submit(1, submission(1, (5, 6, 7, 8, 9)))
    plan = plan_of(core)
    assert plan.reset_rows
    assert (plan.plan_id, plan.acked_plan_id) == (1, 0)
    assert [(row.table_idx, row.prompt_len) for row in plan.open_rows] == [(0, 5)]
    assert plan.write_rows.tolist() == [0] * 8
    assert plan.write_positions.tolist() == plan.write_locs.tolist() == list(range(8))
    assert plan.literal_ids.tolist() == [5, 6, 7, 8, 9]
    assert steps_of(plan) == [(0, 0, 5, 5, True)]


def test_a_second_plan_is_sent_before_the_first_result_and_a_third_is_not() -> None:
    core = attached_core(credits=2)
    core.submit(1, submission(1, (5, 6, 7)))
    plan_of(core)
    assert steps_of(plan_of(core)) == [(0, 3, 1, 0, True)]
    assert core.next_plan() is None


def test_a_result_gives_its_credit_back_and_is_acknowledged_by_the_next_plan() -> None:
    joined = wire(credits=2)
    joined.core.submit(1, submission(1, (5, 6, 7)))
    joined.send()
    joined.send()
    joined.deliver_plan()
    joined.execute()
    joined.deliver_answer()
    plan = plan_of(joined.core)
    assert (plan.plan_id, plan.acked_plan_id) == (3, 1)


def test_a_row_takes_a_page_only_when_it_enters_one() -> None:
    joined = wire(credits=1)
    joined.core.submit(1, submission(1, (5, 6, 7), max_tokens=6))
    plans = [joined.step() for _ in range(6)]
    assert [plan.write_locs.tolist() for plan in plans if plan is not None] == [
        [0, 1, 2, 3],
        [],
        [4, 5, 6, 7],
        [],
        [],
        [],
    ]


def test_requests_run_in_order_of_arrival_and_wait_for_a_row() -> None:
    joined = wire(num_rows=2)
    for key in (1, 2, 3):
        joined.core.submit(1, submission(key, (key,), max_tokens=2))
    plan = plan_of(joined.core)
    assert plan.step_rows.tolist() == [0, 1]
    assert plan.literal_ids.tolist() == [1, 2]
    assert len(joined.core.scheduler.waiting) == 1


def test_more_requests_than_rows_all_get_their_answers() -> None:
    joined = wire(num_rows=2)
    wanted = [submission(key, (key, key), max_tokens=key) for key in range(1, 8)]
    for one in wanted:
        joined.core.submit(1, one)
    joined.run_until_idle()
    assert [joined.heard.tokens[1, key] for key in range(1, 8)] == [
        truth_of(one, describe()).answer for one in wanted
    ]


def test_a_row_is_closed_by_the_next_plan_and_opened_again_in_it() -> None:
    joined = wire(num_rows=1, credits=1)
    joined.core.submit(1, submission(1, (1,), max_tokens=1))
    joined.core.submit(1, submission(2, (2,), max_tokens=1))
    joined.step()
    plan = joined.step()
    assert plan is not None
    assert plan.close_rows.tolist() == [0]
    assert [row.seed for row in plan.open_rows] == [2]
    assert plan.write_locs.tolist() == [0, 1, 2, 3]  # the page that the closed row gave back


def test_a_plan_of_closes_alone_is_sent_when_nothing_else_is_to_do() -> None:
    joined = wire(credits=1)
    joined.core.submit(1, submission(1, (1,), max_tokens=1))
    joined.step()
    plan = joined.step()
    assert plan is not None
    assert plan.close_rows.tolist() == [0]
    assert not len(plan.step_rows)
    assert not plan.reset_rows
    assert joined.step() is None
    assert joined.core.scheduler.manager.available_count == 8


class TestChunkedPrefill:
    def test_a_prompt_over_the_budget_is_computed_in_chunks(self) -> None:
        core = attached_core(budget=3, credits=4)
        core.submit(1, submission(1, range(8)))
        assert [steps_of(plan_of(core)) for _ in range(4)] == [
            [(0, 0, 3, 3, False)],
            [(0, 3, 3, 3, False)],
            [(0, 6, 2, 2, True)],
            [(0, 8, 1, 0, True)],
        ]

    def test_a_chunk_shares_its_step_with_decode_which_comes_first(self) -> None:
        core = attached_core(budget=4, credits=4)
        core.submit(1, submission(1, (1, 2)))
        plan_of(core)
        core.submit(1, submission(2, range(8)))
        assert [steps_of(plan_of(core)) for _ in range(3)] == [
            [(0, 2, 1, 0, True), (1, 0, 3, 3, False)],
            [(0, 3, 1, 0, True), (1, 3, 3, 3, False)],
            [(0, 4, 1, 0, True), (1, 6, 2, 2, True)],
        ]

    def test_what_a_chunk_leaves_of_the_budget_goes_to_the_next_request(self) -> None:
        core = attached_core(budget=5)
        core.submit(1, submission(1, (1, 2, 3)))
        core.submit(1, submission(2, (4, 5, 6)))
        core.submit(1, submission(3, (7,)))
        assert steps_of(plan_of(core)) == [(0, 0, 3, 3, True), (1, 0, 2, 2, False)]

    def test_decode_over_the_budget_leaves_one_token_to_prefill(self) -> None:
        core = attached_core(budget=1, credits=9)
        core.submit(1, submission(1, (1,)))
        plan_of(core)
        core.submit(1, submission(2, (4, 5)))
        assert steps_of(plan_of(core)) == [(0, 1, 1, 0, True), (1, 0, 1, 1, False)]

    @pytest.mark.parametrize("budget", [1, 2, 3, 7, 64])
    @pytest.mark.parametrize("page_size", [1, 4])
    def test_the_answer_does_not_depend_on_the_chunks(self, budget: int, page_size: int) -> None:
        joined = wire(budget=budget, page_size=page_size, num_pages=64 // page_size)
        wanted = [submission(key, range(key, key + 9), max_tokens=4) for key in (1, 2, 3)]
        for one in wanted:
            joined.core.submit(1, one)
        joined.run_until_idle()
        for one in wanted:
            assert joined.heard.tokens[1, one.key] == truth_of(one, describe()).answer


class TestTheEndOfAnAnswer:
    def test_max_tokens_bounds_it(self) -> None:
        joined = wire()
        joined.core.submit(1, submission(1, max_tokens=3))
        joined.run_until_idle()
        assert len(joined.heard.tokens[1, 1]) == 3
        assert joined.heard.cause(1) is FinishCause.MAX_TOKENS

    def test_the_context_bounds_it_when_max_tokens_is_absent(self) -> None:
        joined = wire(max_seq_len=10)
        joined.core.submit(1, submission(1, (1, 2, 3)))
        joined.run_until_idle()
        assert len(joined.heard.tokens[1, 1]) == 7
        assert joined.heard.cause(1) is FinishCause.MAX_TOKENS

    def test_a_stop_token_is_the_last_token(self) -> None:
        answer = truth_of(submission(1, max_tokens=9), describe()).answer
        nth = next(nth for nth in range(1, 9) if answer[nth] not in answer[:nth])
        joined = wire()
        joined.core.submit(1, submission(1, max_tokens=9, stop=[answer[nth]]))
        joined.run_until_idle()
        assert joined.heard.tokens[1, 1] == answer[: nth + 1]
        assert joined.heard.cause(1) is FinishCause.STOP_TOKEN

    def test_nothing_is_computed_past_max_tokens(self) -> None:
        joined = wire()
        joined.core.submit(1, submission(1, (1, 2, 3), max_tokens=2))
        joined.run_until_idle()
        assert sum(len(plan.step_rows) for plan in joined.sent) == 2


class TestTheSameEventsGiveTheSamePlans:
    """Byte for byte, whatever the process hashes or allocates."""

    def encoded(self, joined: Wire) -> list[bytes]:
        return [
            encode_plan(dataclasses.replace(plan, manager_id="")).SerializeToString()
            for plan in joined.sent
        ]

    def history(self) -> Wire:
        joined = wire(budget=5, num_pages=5)
        for key in range(1, 7):
            joined.core.submit(key % 2, submission(key, range(key, key + 5), max_tokens=9))
        for _ in range(5):
            joined.step()
        joined.core.cancel(0, 2)
        joined.core.stop(1, 1)
        joined.cut()
        joined.attach()
        joined.run_until_idle()
        joined.runner = FakeRunner(joined.runner.description, "boot-2")
        joined.core.submit(0, submission(9, (1, 2), max_tokens=4))
        joined.cut()
        joined.attach()
        joined.run_until_idle()
        return joined

    def test_over_preemption_cancel_and_recovery(self) -> None:
        first, second = self.history(), self.history()
        assert first.core.scheduler.totals.preempted > 0
        assert self.encoded(first) == self.encoded(second)

    def test_but_for_the_name_of_the_manager(self) -> None:
        first, second = wire(), wire()
        for joined in (first, second):
            joined.core.submit(1, submission(1, max_tokens=1))
            joined.run_until_idle()
        assert first.sent[0].manager_id != second.sent[0].manager_id


def test_the_columns_of_a_plan_are_int32() -> None:
    core = attached_core()
    core.submit(1, submission(1))
    for plan in (plan_of(core), plan_of(core)):
        for column in dataclasses.fields(plan):
            value = getattr(plan, column.name)
            if isinstance(value, np.ndarray) and column.name != "step_samples":
                assert value.dtype == np.int32, column.name


def test_a_step_is_no_larger_than_the_runner_has_memory_for() -> None:
    core = attached_core(budget=100, max_step_tokens=5)
    core.submit(1, submission(1, tuple(range(1, 13))))
    assert [steps_of(plan_of(core))[0][1:3] for _ in range(2)] == [(0, 5), (5, 5)]
