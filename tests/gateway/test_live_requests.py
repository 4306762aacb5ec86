"""Names that are taken, and how what they name is cancelled."""

from __future__ import annotations

from contextvars import copy_context

import pytest

from gateway.caller import is_called_by
from gateway.live_requests import CancelledIds, LiveRequests
from servicekit.errors import (
    AlreadyExists,
    Cancelled,
    InvalidArgument,
    PagewireError,
    Reason,
    Unavailable,
)


def test_a_name_is_taken_while_its_answer_is_under_way_and_free_afterwards() -> None:
    live = LiveRequests()
    with live.claimed("a"):
        with pytest.raises(AlreadyExists, match="'a' is live"), live.claimed("a"):
            pass
        with live.claimed("b"):
            pass
    with live.claimed("a") as again:
        assert again.request_id == "a"


def test_callers_neither_share_names_nor_cancel_each_other() -> None:
    live = LiveRequests()

    def claim_and_cancel() -> CancelledIds:
        is_called_by("bob")
        with live.claimed("a"):
            return live.cancel(["a", "alices"])

    with live.claimed("a"), live.claimed("alices"):
        assert copy_context().run(claim_and_cancel) == CancelledIds(["a"], ["alices"])
        assert live.cancel(["a"]) == CancelledIds(["a"], [])


def test_empty_names_are_made_up_and_differ() -> None:
    live = LiveRequests()
    with live.claimed("") as one, live.claimed("") as two:
        assert one.request_id
        assert one.request_id != two.request_id


def test_a_name_that_is_too_long_is_refused_and_not_taken() -> None:
    live = LiveRequests()
    with pytest.raises(InvalidArgument, match="257 characters"), live.claimed("x" * 257):
        pass
    assert live.cancel(["x" * 257]) == CancelledIds([], ["x" * 257])


def test_a_cancel_ends_what_is_live_and_tells_what_is_not() -> None:
    live, ends = LiveRequests(), list[Cancelled]()

    def end(why: Cancelled) -> bool:
        ends.append(why)
        return True

    with live.claimed("a") as a, live.claimed("b") as b:
        a.ends_by(end)
        b.ends_by(end)
        assert live.cancel(["b", "c", "b"]) == CancelledIds(["b"], ["c"])
    assert [(why.reason, "'b'" in why.message) for why in ends] == [(Reason.CANCELLED, True)]


def test_a_request_that_had_ended_is_not_cancelled() -> None:
    live = LiveRequests()
    with live.claimed("a") as a:
        a.ends_by(lambda _: False)
        assert live.cancel(["a"]) == CancelledIds([], ["a"])


def test_a_request_can_be_cancelled_before_its_prompt_is_tokenized() -> None:
    live = LiveRequests()
    with live.claimed("a") as a:
        assert live.cancel(["a"]) == CancelledIds(["a"], [])
        with pytest.raises(Cancelled):
            a.ends_by(lambda _: True)


def test_case_8_3_a_cancelled_name_is_free_at_once_and_its_end_leaves_the_successor_alone() -> None:
    """Case 8.3: cancel X and send X again, while the first X has not heard of it."""
    live = LiveRequests()
    with live.claimed("x"):
        live.cancel(["x"])
        successor = live.claimed("x")
        successor.__enter__()
    with pytest.raises(AlreadyExists), live.claimed("x"):
        pass
    successor.__exit__(None, None, None)
    with live.claimed("x"):
        pass


def test_all_are_ended_with_what_there_is_to_say() -> None:
    live, why = LiveRequests(), Unavailable(Reason.DRAINING, "the server stops")
    told: list[PagewireError] = []
    with live.claimed("a") as one, live.claimed("b") as other:
        one.ends_by(lambda given: told.append(given) is None)
        live.end_all(why)
        assert told == [why]
        with pytest.raises(Unavailable):  # its prompt was not tokenized yet
            other.ends_by(lambda given: True)
