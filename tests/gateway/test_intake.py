"""How many answers at once, and for how long."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from contextvars import copy_context

import pytest

from gateway.caller import is_called_by
from gateway.intake import Intake
from servicekit.errors import DeadlineExceeded, PagewireError, Reason, ResourceExhausted


def nobody(_: PagewireError) -> None:
    raise AssertionError("its time is not over")


def as_caller(name: str, intake: Intake, until: ExitStack) -> None:
    """A request of that caller, live until the stack closes."""

    def take() -> None:
        is_called_by(name)
        until.enter_context(intake.taken(nobody))

    copy_context().run(take)


def test_a_caller_has_as_many_as_it_may_whatever_others_have() -> None:
    intake = Intake(max_live_requests=2)
    with ExitStack() as alice, ExitStack() as bob:
        as_caller("alice", intake, alice)
        as_caller("alice", intake, alice)
        with pytest.raises(
            ResourceExhausted, match="this API key has 2 live requests, and"
        ) as refused:
            as_caller("alice", intake, alice)
        assert refused.value.reason is Reason.TOO_MANY_LIVE_REQUESTS
        assert refused.value.metadata == {"live_requests": "2", "max_live_requests": "2"}
        as_caller("bob", intake, bob)
        assert intake.live_requests == 3
        alice.close()
        as_caller("alice", intake, alice)
    assert intake.live_requests == 0


def test_without_keys_all_callers_are_one() -> None:
    intake = Intake(max_live_requests=1)
    with (
        intake.taken(nobody),
        pytest.raises(ResourceExhausted, match="this server has 1 live"),
        intake.taken(nobody),
    ):
        pass


def test_a_failure_counts_down() -> None:
    intake = Intake(max_live_requests=1)
    for _ in range(3):
        with pytest.raises(KeyError), intake.taken(nobody):
            raise KeyError
    assert intake.live_requests == 0


async def test_what_takes_too_long_is_ended() -> None:
    ended: asyncio.Future[PagewireError] = asyncio.get_running_loop().create_future()
    with Intake(max_request_s=0.01).taken(ended.set_result):
        why = await ended
    assert isinstance(why, DeadlineExceeded)
    assert why.reason is Reason.DEADLINE_EXCEEDED
    assert "max_request_s 0.01" in why.message


async def test_what_ended_in_time_is_left_alone() -> None:
    with Intake(max_request_s=1000).taken(nobody):
        pass
