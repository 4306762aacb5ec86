"""What is counted of answers, by a clock that the test turns."""

from __future__ import annotations

from contextlib import suppress

import pytest

from gateway.generation import Finished, FinishReason, Started
from gateway.text_stream import Delta
from gateway.totals import Times, Totals
from servicekit.errors import Cancelled, Reason


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def counts(times: Times) -> dict[float, int]:
    """Those that are not zero, by the upper end of their bucket."""
    ends = [*times.bounds_s, float("inf")]
    return {end: count for end, count in zip(ends, times.counts, strict=True) if count}


def test_tokens_that_come_together_share_their_time() -> None:
    clock = Clock()
    totals = Totals(clock)
    with totals.answer() as note:
        assert totals.live_answers == 1
        note(Started("id", 7))
        clock.now_s += 0.3
        note(Delta("a", (1, 2)))
        clock.now_s += 0.12
        note(Delta("b", (3, 4, 5)))
        clock.now_s += 30
        note(Delta("c", (6,)))
        note(Finished(FinishReason.STOP, 7, 6, cached_tokens=4))
    assert (totals.prompt_tokens, totals.cached_tokens, totals.completion_tokens) == (7, 4, 6)
    assert counts(totals.first_token) == {0.5: 1}
    assert counts(totals.next_token) == {0.05: 3, float("inf"): 1}
    assert totals.next_token.sum_s == pytest.approx(30.12)
    assert totals.live_answers == 0


def test_a_token_whose_text_was_never_sent_is_counted_at_the_end() -> None:
    totals = Totals(Clock())
    with totals.answer() as note:
        note(Delta("a", (1,)))
        note(Delta("only text, of a token that comes later", ()))
        note(Finished(FinishReason.STOP, 1, 3))
    assert totals.completion_tokens == 3
    assert sum(totals.next_token.counts) == 0


def test_tokens_that_an_earlier_answer_had_are_not_counted_again() -> None:
    totals = Totals(Clock())
    with totals.answer() as note:
        note(Delta("c", (3,)))
        note(Finished(FinishReason.LENGTH, 1, 4, resumed_tokens=2))
    assert totals.completion_tokens == 2


def test_an_answer_that_is_left_keeps_what_it_counted() -> None:
    totals = Totals(Clock())
    with suppress(RuntimeError), totals.answer() as note:
        note(Delta("a", (1,)))
        raise RuntimeError
    assert (totals.live_answers, totals.completion_tokens) == (0, 1)


def test_a_time_on_a_border_is_in_the_bucket_that_ends_there() -> None:
    times = Times((0.1, 0.2))
    for seconds in (0.1, 0.15, 0.2, 0.3):
        times.note(seconds)
    assert times.counts == [1, 2, 1]


def test_each_choice_has_its_own_times_and_the_prompt_counts_once() -> None:
    clock = Clock()
    totals = Totals(clock)
    with totals.answer() as note:
        note(Started("id", 7))
        clock.now_s += 0.3
        note(Delta("a", (1,)))
        clock.now_s += 0.4
        note(Delta("b", (2,), choice=1))
        clock.now_s += 0.03
        note(Delta("c", (3,), choice=1))
        note(Finished(FinishReason.STOP, 7, 1, cached_tokens=2))
        note(Finished(FinishReason.STOP, 7, 3, cached_tokens=6, choice=1))
        assert totals.live_answers == 1
    assert (totals.prompt_tokens, totals.cached_tokens, totals.completion_tokens) == (7, 2, 4)
    assert counts(totals.first_token) == {0.5: 1, 1.0: 1}
    assert counts(totals.next_token) == {0.05: 1}


def test_a_request_counts_under_the_code_that_it_ends_with() -> None:
    totals = Totals(Clock())
    with totals.request("X"):
        pass
    for failure in (Cancelled(Reason.CANCELLED, ""), RuntimeError(), GeneratorExit()):
        with suppress(type(failure)), totals.request("X"):
            raise failure
    assert totals.requests == {("X", "OK"): 1, ("X", "CANCELLED"): 2, ("X", "INTERNAL"): 1}
