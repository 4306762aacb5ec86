"""Public bug reports about scheduling, as inputs to this manager; bounds are in steps."""

from __future__ import annotations

import pytest

from cachesvc.core import Core
from cachesvc.limits import Limits
from cachesvc.request import FinishCause
from servicekit.errors import InvalidArgument, Reason
from tests.cachesvc.builders import describe, submission
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.truth import truth_of
from tests.cachesvc.wire import Wire, wire


def wire_of(description_changes: dict[str, int], **limits: int) -> Wire:
    joined = Wire(Core(Limits(**limits)), FakeRunner(describe(**description_changes)))
    joined.attach()
    return joined


def test_case_3_1_a_prompt_that_can_never_fit_is_refused_at_once_and_holds_nobody_up() -> None:
    """vllm-project/vllm issue #39734: a request larger than the cache and within max_seq_len was
    retried for ever at the head of the queue.
    """
    joined = wire(num_pages=16, max_seq_len=256)
    with pytest.raises(InvalidArgument, match="100 tokens and the page pool holds 64") as refused:
        joined.core.submit(1, submission(1, [1] * 100))
    assert refused.value.reason is Reason.PROMPT_EXCEEDS_POOL
    joined.core.submit(1, submission(2, [1] * 5, max_tokens=3))
    joined.run_until_idle()
    assert joined.heard.cause(2) is FinishCause.MAX_TOKENS
    assert joined.core.is_idle


def test_case_3_4_a_running_request_gets_a_token_with_every_step_while_prompts_pour_in() -> None:
    """sgl-project/sglang issue #32549: prefill whenever possible, and steady arrivals, starved what
    was decoding. Here a new prompt of a whole step's tokens comes with each of 200 steps.
    """
    joined = wire_of(
        {"num_rows": 8, "num_pages": 128, "max_seq_len": 256}, step_budget_tokens=8, credits=1
    )
    joined.core.submit(1, submission(1, [1, 2], max_tokens=202))
    joined.step()
    for key in range(2, 202):
        joined.core.submit(1, submission(key, [key % 16] * 8, max_tokens=1))
        plan = joined.step()
        assert plan is not None
        assert plan.step_rows[0] == 0, "it is in every step"
        assert plan.step_extend_lens.sum() <= 8
        assert len(joined.heard.tokens[1, 1]) == key
    joined.run_until_idle()
    assert all(joined.heard.cause(key) is FinishCause.MAX_TOKENS for key in range(1, 202))


def test_case_3_4_a_long_prompt_ends_among_endless_short_ones() -> None:
    """The mirror case: of 8 tokens a step a long prompt gets at least 4 while short ones want the
    rest, and its last 8 are short: 64 tokens take 15 steps, though two prompts of 4 come with each.
    """
    joined = wire_of(
        {"num_rows": 16, "num_pages": 128, "max_seq_len": 256}, step_budget_tokens=8, credits=1
    )
    joined.core.submit(1, submission(1, [1] * 64, max_tokens=1))
    key, steps = 1, 0
    while joined.heard.cause(1) is None:
        for _ in range(2):
            key += 1
            joined.core.submit(1, submission(key, [key % 16, 2, 3, 4], max_tokens=1))
        joined.step()
        steps += 1
    assert steps == 15
    ended = [other for other in range(2, key + 1) if joined.heard.cause(other) is not None]
    assert len(ended) == 14, "one in every step until then: they do not wait for it either"


def test_case_3_5_a_request_that_fills_the_pool_alone_ends_and_the_next_is_served() -> None:
    """sgl-project/sglang PR #19881: nobody was left to preempt, and the scheduler raised."""
    joined = wire(num_pages=8, max_seq_len=128)
    wanted = submission(1, [1] * 20, max_tokens=100)
    joined.core.submit(1, wanted)
    joined.run_until_idle()
    truth = truth_of(wanted, joined.runner.description)
    assert len(truth.answer) == 13, "12 are stored, the thirteenth has no place"
    assert joined.heard.tokens[1, 1] == truth.answer
    assert joined.heard.cause(1) is FinishCause.CACHE_FULL
    assert joined.core.scheduler is not None
    assert joined.core.scheduler.manager.available_count == 8
    joined.core.submit(1, submission(2, [2] * 20, max_tokens=3))
    joined.run_until_idle()
    assert joined.heard.cause(2) is FinishCause.MAX_TOKENS


# Further leads of kind 3


def test_lead_a_preempted_request_is_ahead_of_newcomers() -> None:
    """vllm-project/vllm #41951: it went behind newcomers, and was computed again and again."""
    joined = wire(num_pages=5, num_rows=2, credits=1)
    for key in (1, 2):
        joined.core.submit(1, submission(key, [key] * 7, max_tokens=8))
    joined.step()
    joined.core.submit(1, submission(3, [3], max_tokens=1))
    joined.run_until_idle()
    assert joined.core.scheduler is not None
    assert joined.core.scheduler.totals.preempted == 1
    openings = [opened.seed for plan in joined.sent for opened in plan.open_rows]
    assert openings == [1, 2, 2, 3]


def test_lead_a_prompt_over_the_budget_of_a_step_is_computed_in_several() -> None:
    """vllm-project/vllm-metal #199: with chunking off it waited for ever. Here it is never off."""
    joined = wire(budget=3, credits=1)
    joined.core.submit(1, submission(1, [1] * 20, max_tokens=1))
    joined.run_until_idle()
    assert [plan.step_extend_lens.tolist() for plan in joined.sent[:7]] == [[3]] * 6 + [[2]]
    assert joined.heard.cause(1) is FinishCause.MAX_TOKENS
