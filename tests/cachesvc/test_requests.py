"""Requests come and go: what is refused at once, and leaving at any moment."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cachesvc.core import Core
from cachesvc.limits import Limits
from servicekit.errors import InvalidArgument, PagewireError, Reason, Unavailable
from tests.cachesvc.builders import attached_core, describe, submission
from tests.cachesvc.truth import truth_of
from tests.cachesvc.wire import Wire, wire


def refused(core: Core, *args: object, **wishes: object) -> PagewireError:
    with pytest.raises(InvalidArgument) as caught:
        core.submit(1, submission(*args, **wishes))  # type: ignore[arg-type]
    assert len(core.live) == 0
    assert core.next_plan() is not None  # the one that resets rows
    assert core.scheduler is not None
    assert core.scheduler.manager.available_count == core.scheduler.manager.pool.num_pages
    return caught.value


class TestWhatCanNeverBeServed:
    """Refused at submit with the reason, the field, and the numbers in the text."""

    def test_an_empty_prompt(self) -> None:
        error = refused(attached_core(), 1, ())
        assert (error.reason, error.metadata) == (Reason.EMPTY_PROMPT, {"field": "prompt"})

    def test_a_prompt_that_leaves_no_room_in_the_context(self) -> None:
        error = refused(attached_core(), 1, [1] * 24)
        assert (error.reason, error.metadata) == (Reason.PROMPT_TOO_LONG, {"field": "prompt"})
        assert "24 tokens" in error.message
        assert "max_seq_len 24" in error.message

    def test_prompt_and_max_tokens_over_the_context(self) -> None:
        error = refused(attached_core(), 1, [1] * 20, max_tokens=5)
        assert error.reason is Reason.CONTEXT_TOO_LONG
        assert error.metadata == {"field": "stop.max_tokens"}
        assert "prompt 20 + stop.max_tokens 5 tokens pass max_seq_len 24" in error.message

    def test_a_prompt_that_with_one_token_never_fits_the_pool(self) -> None:
        error = refused(attached_core(num_pages=2), 1, [1] * 8)
        assert (error.reason, error.metadata) == (Reason.PROMPT_EXCEEDS_POOL, {"field": "prompt"})
        assert "8 tokens and the page pool holds 8" in error.message

    @pytest.mark.parametrize("max_tokens", [0, -1])
    def test_no_tokens_asked_for(self, max_tokens: int) -> None:
        error = refused(attached_core(), 1, max_tokens=max_tokens)
        assert error.reason is Reason.INVALID_FIELD
        assert error.metadata == {"field": "stop.max_tokens"}
        assert str(max_tokens) in error.message

    @pytest.mark.parametrize("token_id", [-1, 16])
    def test_a_token_id_outside_the_vocabulary(self, token_id: int) -> None:
        error = refused(attached_core(), 1, (3, token_id))
        assert (error.reason, error.metadata) == (Reason.TOKEN_OUT_OF_VOCAB, {"field": "prompt"})
        assert f"token id {token_id}; ids go from 0 to 15" in error.message

    def test_a_stop_token_id_outside_the_vocabulary(self) -> None:
        error = refused(attached_core(), 1, stop=[16])
        assert error.reason is Reason.TOKEN_OUT_OF_VOCAB
        assert error.metadata == {"field": "stop.token_ids"}

    def test_more_stop_token_ids_than_a_row_holds(self) -> None:
        error = refused(attached_core(), 1, stop=[1] * 129)
        assert (error.reason, error.metadata["field"]) == (Reason.INVALID_FIELD, "stop.token_ids")
        assert "129" in error.message
        assert "128" in error.message


def test_the_largest_requests_that_fit_are_served() -> None:
    joined = wire(num_pages=2)
    joined.core.submit(1, submission(1, [1] * 7))
    joined.core.submit(1, submission(2, [1] * 4, max_tokens=20, stop=[3] * 128))
    joined.run_until_idle()
    assert len(joined.heard.finished) == 2


def test_two_sessions_may_use_one_key() -> None:
    core = attached_core()
    core.submit(1, submission(7))
    core.submit(2, submission(7))
    assert len(core.live) == 2


def test_before_the_first_runner_nothing_can_be_submitted() -> None:
    with pytest.raises(Unavailable) as caught:
        Core(Limits(step_budget_tokens=64, credits=2)).submit(1, submission())
    assert caught.value.reason is Reason.CHAIN_NOT_ATTACHED


def test_while_the_runner_is_away_requests_wait() -> None:
    joined = wire()
    joined.cut()
    joined.core.submit(1, submission(1, max_tokens=2))
    assert joined.core.next_plan() is None
    joined.attach()
    joined.run_until_idle()
    assert len(joined.heard.tokens[1, 1]) == 2


def before_the_first_plan(joined: Wire) -> None:
    pass


def with_a_chunk_under_way(joined: Wire) -> None:
    joined.send()


def with_two_plans_under_way(joined: Wire) -> None:
    for _ in range(3):
        joined.step()
    joined.send()
    joined.send()


def between_plan_and_result(joined: Wire) -> None:
    with_two_plans_under_way(joined)
    joined.deliver_plan()
    joined.execute()


def while_its_last_token_is_under_way(joined: Wire) -> None:
    for _ in range(5):
        joined.step()
    while joined.send() is not None:
        pass


def while_the_stream_is_down(joined: Wire) -> None:
    with_two_plans_under_way(joined)
    joined.cut()


def end_by_stop(core: Core) -> None:
    core.stop(1, 1)


def end_by_cancel(core: Core) -> None:
    core.cancel(1, 1)


def end_by_session(core: Core) -> None:
    core.close_session(1)


MOMENTS = (
    before_the_first_plan,
    with_a_chunk_under_way,
    with_two_plans_under_way,
    between_plan_and_result,
    while_its_last_token_is_under_way,
    while_the_stream_is_down,
)


@pytest.mark.parametrize("end", [end_by_stop, end_by_cancel, end_by_session])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_request_may_leave_at_any_moment(
    moment: Callable[[Wire], None], end: Callable[[Core], None]
) -> None:
    joined = wire(budget=2, credits=2)
    joined.core.submit(1, submission(1, (1, 2, 3, 4), max_tokens=5))
    joined.core.submit(2, submission(2, (5, 6), max_tokens=4))
    moment(joined)
    heard_before = list(joined.heard.tokens[1, 1])
    end(joined.core)
    if not joined.core.stream.attached:
        joined.attach()
    joined.run_until_idle()
    assert joined.heard.tokens[1, 1] == heard_before, "a late result is dropped"
    assert joined.heard.cause(1) is None
    neighbour = truth_of(submission(2, (5, 6), max_tokens=4), describe())
    assert joined.heard.tokens[2, 2] == neighbour.answer
    assert joined.core.scheduler.manager.available_count == 8
    assert joined.runner.memory.rows == {}


def test_stop_is_a_finish_and_cancel_is_an_abort() -> None:
    core = attached_core()
    for key in (1, 2):
        core.submit(1, submission(key))
    core.stop(1, 1)
    core.cancel(1, 2)
    assert (core.live.totals.finished, core.live.totals.cancelled) == (1, 1)
    assert len(core.live) == 0


def test_a_key_that_ended_or_never_was_is_ignored() -> None:
    joined = wire()
    joined.core.submit(1, submission(1, max_tokens=1))
    joined.run_until_idle()
    for key in (1, 9):
        joined.core.stop(1, key)
        joined.core.cancel(1, key)
    assert (joined.core.live.totals.finished, joined.core.live.totals.cancelled) == (1, 0)


def test_closing_a_session_leaves_the_others_alone() -> None:
    joined = wire()
    for session_id in (1, 2):
        for key in (1, 2):
            joined.core.submit(session_id, submission(key, seed=9, max_tokens=3))
    joined.step()
    joined.core.close_session(1)
    joined.run_until_idle()
    assert joined.core.live.totals.cancelled == 2
    assert set(joined.heard.finished) == {(2, 1), (2, 2)}
