"""More work than pages: preemption, and the request that the pool cannot hold."""

from __future__ import annotations

import pytest

from cachesvc.request import FinishCause
from servicekit.plan import RowRules
from servicekit.sampling import Sampling
from tests.cachesvc.builders import describe, submission
from tests.cachesvc.truth import truth_of
from tests.cachesvc.wire import Wire, wire


def wire_with_two_requests(credits: int = 1, **changes: object) -> Wire:
    """Two prompts of one page each, in a pool of three pages of four tokens."""
    joined = wire(credits=credits, **{"num_pages": 3, **changes})
    joined.core.submit(1, submission(1, (1, 2, 3, 4), max_tokens=5))
    joined.core.submit(1, submission(2, (5, 6, 7, 8), max_tokens=5))
    return joined


def answer(key: int, prompt: tuple[int, ...], max_tokens: int = 5) -> list[int]:
    return truth_of(submission(key, prompt, max_tokens=max_tokens), describe()).answer


def test_the_youngest_is_preempted_when_two_rows_need_the_last_page() -> None:
    joined = wire_with_two_requests()
    joined.step()
    plan = joined.step()
    assert plan is not None
    assert plan.close_rows.tolist() == [1]
    assert plan.step_rows.tolist() == [0]
    assert plan.write_locs.tolist() == [8, 9, 10, 11]  # the free page: its own stays cached
    assert (joined.core.scheduler.running_count, len(joined.core.scheduler.waiting)) == (1, 1)
    assert joined.core.scheduler.totals.preempted == 1


def test_a_preempted_request_comes_back_with_what_it_sampled_and_its_own_prompt_len() -> None:
    joined = wire_with_two_requests()
    joined.run_until_idle()
    first, second = [row for plan in joined.sent for row in plan.open_rows if row.seed == 2]
    assert (first.prompt_len, second.prompt_len) == (4, 4)
    readmission = next(plan for plan in joined.sent[1:] if plan.open_rows)
    assert readmission.step_cached_lens.tolist() == [4]  # its prompt was still cached
    assert readmission.literal_ids.tolist() == answer(2, (5, 6, 7, 8))[:1]


def test_what_a_preempted_request_sampled_is_history_to_its_penalties() -> None:
    joined = wire(credits=1, num_pages=3)
    joined.core.submit(1, submission(1, (1, 2, 3, 4), max_tokens=5))
    penalised = Sampling(seed=2, presence_penalty=0.5)
    joined.core.submit(1, submission(2, (5, 6, 7, 8), max_tokens=5, sampling=penalised))
    joined.run_until_idle()
    first, second = [row.rules for plan in joined.sent for row in plan.open_rows if row.seed == 2]
    assert first is not None
    assert second is not None
    assert first.history_ids == (5, 6, 7, 8)
    assert second.history_ids == (5, 6, 7, 8, *answer(2, (5, 6, 7, 8))[:1])


def test_a_row_is_told_no_more_than_its_request_asks_for() -> None:
    joined = wire()
    joined.core.submit(1, submission(1))
    joined.core.submit(1, submission(2, stop=(3, 9), min_tokens=4))
    biased = Sampling(min_p=0.25, logit_bias=((7, 1.5), (2, -3.0)))
    joined.core.submit(1, submission(3, sampling=biased, stop=(3,)))
    plan = joined.step()
    assert plan is not None
    assert [row.rules for row in plan.open_rows] == [
        None,
        RowRules(min_tokens=4, stop_token_ids=(3, 9)),
        RowRules(min_p=0.25, bias_ids=(7, 2), biases=(1.5, -3.0)),
    ]


@pytest.mark.parametrize("credits", [1, 2, 3])
def test_the_answers_are_those_of_undisturbed_requests(credits: int) -> None:
    joined = wire_with_two_requests(credits)
    joined.run_until_idle()
    assert joined.core.scheduler.totals.preempted > 0
    assert joined.heard.tokens[1, 1] == answer(1, (1, 2, 3, 4))
    assert joined.heard.tokens[1, 2] == answer(2, (5, 6, 7, 8))


def test_a_late_result_of_a_preempted_row_is_dropped_and_sampled_again() -> None:
    joined = wire_with_two_requests(credits=2)
    joined.send()
    joined.send()  # preempts the second request before its first token is here
    joined.deliver_all()
    assert joined.heard.tokens[1, 2] == []
    joined.run_until_idle()
    assert joined.heard.tokens[1, 2] == answer(2, (5, 6, 7, 8))


def test_a_request_that_arrives_during_pressure_waits_behind_the_preempted_one() -> None:
    joined = wire_with_two_requests()
    joined.step()
    joined.step()
    joined.core.submit(1, submission(3, (9,), max_tokens=1))
    joined.run_until_idle()
    opened = [row.seed for plan in joined.sent for row in plan.open_rows]
    assert opened == [1, 2, 2, 3]


def test_nothing_is_admitted_in_the_step_that_preempts() -> None:
    joined = wire_with_two_requests(num_rows=4, num_pages=5)
    joined.core.submit(1, submission(3, (9, 9, 9, 9), max_tokens=5))
    joined.step()
    joined.core.submit(1, submission(4, (7,), max_tokens=1))
    plan = joined.step()
    assert plan is not None
    assert plan.close_rows.tolist() == [2]
    assert plan.open_rows == ()


def test_the_oldest_is_never_preempted_while_another_runs() -> None:
    joined = wire(num_pages=4, page_size=1, credits=2)
    for key in (1, 2, 3):
        joined.core.submit(1, submission(key, (key,), max_tokens=3))
    joined.run_until_idle()
    opened = [row.seed for plan in joined.sent for row in plan.open_rows]
    assert opened.count(1) == 1
    assert joined.core.scheduler.totals.preempted > 0
    assert [joined.heard.tokens[1, key] for key in (1, 2, 3)] == [
        answer(key, (key,), max_tokens=3) for key in (1, 2, 3)
    ]


def test_more_requests_than_pages_all_get_their_answers() -> None:
    joined = wire(num_pages=5, page_size=2, num_rows=4)
    for key in range(1, 9):
        joined.core.submit(1, submission(key, (key, key + 1, key + 2), max_tokens=6))
    joined.run_until_idle()
    for key in range(1, 9):
        assert joined.heard.tokens[1, key] == answer(key, (key, key + 1, key + 2), max_tokens=6)
    assert joined.core.scheduler.manager.available_count == 5


class TestARequestAloneThatFillsThePool:
    """Two pages of four tokens hold eight: with prompt 3 the sixth token has no place to go on."""

    @pytest.mark.parametrize("credits", [1, 2, 3])
    def test_it_ends_with_cache_full_after_its_outstanding_results(self, credits: int) -> None:
        joined = wire(num_pages=2, credits=credits)
        joined.core.submit(1, submission(1, (1, 2, 3)))
        joined.run_until_idle()
        assert joined.heard.tokens[1, 1] == answer(1, (1, 2, 3), max_tokens=6)
        assert joined.heard.cause(1) is FinishCause.CACHE_FULL
        assert joined.core.scheduler.manager.available_count == 2

    def test_it_is_not_over_while_a_result_is_outstanding(self) -> None:
        joined = wire(num_pages=1, credits=2)
        joined.core.submit(1, submission(1, (1, 2, 3)))
        joined.send()
        joined.send()  # fills position 3, the last one
        joined.deliver_plan()
        joined.execute()
        joined.deliver_answer()
        assert joined.send() is None
        assert joined.heard.cause(1) is None
        joined.deliver_all()
        assert joined.heard.tokens[1, 1] == answer(1, (1, 2, 3), max_tokens=2)
        assert joined.heard.cause(1) is FinishCause.CACHE_FULL

    def test_the_next_request_gets_its_pages(self) -> None:
        joined = wire(num_pages=2)
        joined.core.submit(1, submission(1, (1, 2, 3)))
        joined.core.submit(1, submission(2, (4, 5, 6), max_tokens=2))
        joined.run_until_idle()
        assert joined.heard.cause(1) is FinishCause.CACHE_FULL
        assert joined.heard.cause(2) is FinishCause.MAX_TOKENS

    def test_its_last_token_may_be_a_stop_token(self) -> None:
        tokens = answer(1, (1, 2, 3), max_tokens=6)
        assert tokens[5] not in tokens[:5]
        joined = wire(num_pages=2)
        joined.core.submit(1, submission(1, (1, 2, 3), stop=[tokens[5]]))
        joined.run_until_idle()
        assert joined.heard.cause(1) is FinishCause.STOP_TOKEN

    def test_it_ends_at_once_when_readmitted_with_more_tokens_than_the_pool_holds(self) -> None:
        joined = wire(num_pages=2, credits=1)
        joined.core.submit(1, submission(1, (1, 2, 3)))
        for _ in range(6):
            joined.step()  # nine tokens are known now
        joined.core.stream.boot_id = "a life that is over"
        joined.cut()
        joined.attach()
        joined.run_until_idle()
        assert joined.heard.tokens[1, 1] == answer(1, (1, 2, 3), max_tokens=6)
        assert joined.heard.cause(1) is FinishCause.CACHE_FULL
