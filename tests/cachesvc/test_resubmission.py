"""Requests that come again from a gateway whose session was lost."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration

from cachesvc.core import Core
from cachesvc.limits import Limits
from cachesvc.request import FinishCause
from cachesvc.stats import stats_of
from servicekit.errors import InvalidArgument, Reason, ResourceExhausted
from tests.cachesvc.builders import describe, submission
from tests.cachesvc.chain import answer, chain_of
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.truth import truth_of
from tests.cachesvc.wire import Wire
from tests.log_lines import log_lines


def one_row(**limits: int) -> Wire:
    """A row for one request at a time."""
    given = Limits(step_budget_tokens=64, credits=1, **limits)  # type: ignore[arg-type]
    joined = Wire(Core(given), FakeRunner(describe(num_rows=1)))
    joined.attach()
    return joined


def admitted_seeds(joined: Wire) -> list[int]:
    return [row.seed for plan in joined.sent for row in plan.open_rows]


def test_they_keep_the_order_of_their_arrival_and_go_ahead_of_newcomers() -> None:
    joined = one_row()
    joined.core.submit(1, submission(1, max_tokens=1), now_s=100)
    joined.core.submit(2, submission(1, seed=2, max_tokens=1, age_s=20), now_s=101)
    joined.core.submit(2, submission(2, seed=3, max_tokens=1, age_s=10), now_s=102)
    joined.core.submit(3, submission(1, seed=4, max_tokens=1, age_s=15), now_s=103)
    joined.run_until_idle()
    assert admitted_seeds(joined) == [2, 4, 3, 1]


def test_a_class_of_priority_is_worth_as_much_as_before() -> None:
    joined = one_row(aging_s=10)
    joined.core.submit(1, submission(1, max_tokens=1, age_s=15), now_s=100)
    joined.core.submit(1, submission(2, max_tokens=1, age_s=9, priority=1), now_s=100)
    joined.run_until_idle()
    assert admitted_seeds(joined) == [2, 1]


def test_a_full_queue_turns_newcomers_away_and_none_of_them() -> None:
    joined = one_row(max_waiting=1)
    for key in (1, 2, 3):
        joined.core.submit(1, submission(key, max_tokens=1, age_s=0.0))
    with pytest.raises(ResourceExhausted):
        joined.core.submit(1, submission(4, max_tokens=1))
    joined.run_until_idle()
    assert admitted_seeds(joined) == [1, 2, 3]


def test_an_age_below_zero_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="age is -1 s") as caught:
        one_row().core.submit(1, submission(1, age_s=-1.0))
    assert caught.value.reason is Reason.INVALID_FIELD
    assert caught.value.metadata == {"field": "age"}


def test_they_are_counted_as_such_and_in_no_share_of_the_cache() -> None:
    """Tokens that a request computed itself before are no hit of the cache."""
    joined = one_row()
    prompt = (1, 2, 3, 4, 5, 6)
    truth = truth_of(submission(1, prompt, max_tokens=8), joined.runner.description).answer
    joined.core.submit(1, submission(1, prompt, max_tokens=8))
    joined.run_until_idle()
    again = submission(1, prompt, max_tokens=8, resume=truth[:4], age_s=1.5)
    joined.core.submit(2, again)
    joined.run_until_idle()
    assert joined.heard.tokens[2, 1] == truth[4:]
    stats = stats_of(joined.core)
    assert stats.resubmitted_total == 1
    assert (stats.admitted_prompt_tokens_total, stats.cached_tokens_total) == (6, 0)


def test_one_whose_end_was_lost_ends_at_once() -> None:
    joined = one_row()
    joined.core.submit(1, submission(1, max_tokens=2, resume=[7, 7], age_s=1.0))
    joined.core.submit(1, submission(2, stop=[9], resume=[7, 9], age_s=1.0))
    joined.run_until_idle()
    ends = [joined.heard.finished[1, key].cause for key in (1, 2)]
    assert ends == [FinishCause.MAX_TOKENS, FinishCause.STOP_TOKEN]
    assert admitted_seeds(joined) == []


async def test_a_bunch_of_them_is_one_line_in_the_log() -> None:
    async with chain_of() as chain:
        gateway = await chain.gateway()
        with log_lines() as lines:
            for key, held in ((1, 2), (2, 3)):
                resume, age = answer(key, held), Duration(seconds=7)
                await gateway.submit(key, max_tokens=5, resume_token_ids=resume, age=age)
            await gateway.submit(3, max_tokens=5)
            await gateway.until_finished(1, 2, 3)
            chain.service.tick()
            chain.service.tick()
        assert [gateway.tokens[key] for key in (1, 2)] == [answer(1, 5)[2:], answer(2, 5)[3:]]
        told = [line for line in lines if line["event"] == "requests resubmitted"]
        (line,) = told
        assert (line["session_id"], line["requests"], line["held_tokens"]) == (1, 2, 5)
        assert (await chain.stats()).resubmitted_total == 2


async def test_an_age_below_zero_is_rejected_over_the_wire() -> None:
    async with chain_of() as chain:
        gateway = await chain.gateway()
        await gateway.submit(1, age=Duration(nanos=-1))
        await gateway.until(lambda _: gateway.rejected)
        assert dict(gateway.rejected[1].metadata) == {"field": "age"}
