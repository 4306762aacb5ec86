"""Requests that a runner may have died of: who is blamed, tried alone, cleared, given up."""

from __future__ import annotations

from typing import Any

import pytest

from cachesvc.request import FinishCause, Req, ReqState
from cachesvc.story import WaitCause
from servicekit.errors import Internal, Reason
from servicekit.plan import Failed
from tests.cachesvc.builders import submission
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.wire import Wire, answer, wire

GUILTY = 2


def crowd(count: int = 3, **changes: object) -> Wire:
    """So many requests, by key, and nothing sent; `GUILTY` is deadly."""
    joined = wire(credits=2, num_pages=24, **changes)
    joined.runner.dies_of = {(GUILTY, 0)}
    for key in range(1, count + 1):
        joined.core.submit(1, submission(key, max_tokens=5))
    return joined


def boot(joined: Wire) -> None:
    """The runner is dead, and another one comes."""
    joined.cut()
    joined.runner = FakeRunner(
        joined.runner.description, joined.runner.boot_id + "+", joined.runner.dies_of
    )
    joined.attach()


def run(joined: Wire, *, reports: bool) -> int:
    """Until nothing is left to do. Returns how many runners died."""
    deaths = 0
    for _ in range(500):
        moved = joined.send() is not None or bool(joined.plans)
        while joined.plans and not joined.runner.is_dead:
            joined.deliver_plan()
            joined.execute()
        if joined.runner.is_dead:
            deaths += 1
            while reports and joined.answers:
                joined.deliver_answer()
            boot(joined)
        while joined.answers:
            joined.deliver_answer()
        if not moved:
            return deaths
    raise AssertionError("it does not end")


def req_of(joined: Wire, key: int) -> Req:
    req = joined.core.live.find(1, key)
    assert req is not None
    return req


def running(joined: Wire) -> list[int]:
    reqs = joined.core.ready_scheduler().requests()
    return sorted(req.key for req in reqs if req.state is ReqState.RUNNING)


@pytest.mark.parametrize("reports", [True, False], ids=["that tells why", "that is just gone"])
def test_in_a_crowd_the_guilty_one_kills_two_runners_and_the_others_get_their_answers(
    log_lines: list[Any], *, reports: bool
) -> None:
    joined = crowd()
    assert run(joined, reports=reports) == 2
    assert joined.heard.tokens[1, 1] == answer(1)
    assert joined.heard.tokens[1, 3] == answer(3)
    failure = joined.heard.finished[1, GUILTY].failure
    assert joined.heard.cause(GUILTY) is FinishCause.FAILED
    assert isinstance(failure, Internal)
    assert failure.reason is Reason.RUNNER_DIED_TWICE
    totals = joined.core.live.totals
    assert (totals.poisoned, totals.failed, totals.finished) == (1, 1, 2)
    poisoned = [line for line in log_lines if line["event"] == "request poisoned"]
    assert [(line["request_id"], line["runner_deaths"]) for line in poisoned] == [("request-2", 2)]


def test_who_is_not_in_the_plan_that_the_runner_names_is_not_blamed() -> None:
    joined = crowd(1)
    joined.core.submit(1, submission(3, max_tokens=1))
    joined.send()  # all that request 3 wants
    joined.core.submit(1, submission(GUILTY, max_tokens=5))
    joined.send()
    joined.core.runner_failed(Failed(2, "x", 2))
    boot(joined)
    deaths = {key: req_of(joined, key).runner_deaths for key in (1, 2, 3)}
    assert deaths == {1: 1, 2: 1, 3: 0}


def test_suspects_are_tried_one_at_a_time_in_order_and_newcomers_wait_behind_them() -> None:
    joined = crowd(3)
    joined.send()
    boot(joined)
    joined.runner.dies_of = set()
    joined.core.submit(1, submission(4, max_tokens=5))
    tried = []
    while not tried or len(tried[-1]) < 3:
        joined.step()
        tried.append(running(joined))
    assert tried[:3] == [[1], [1, 2], [1, 2, 3]]
    joined.run_until_idle()
    for key in (1, 2, 3, 4):
        assert joined.heard.tokens[1, key] == answer(key)


def test_one_that_waits_to_be_tried_says_so() -> None:
    joined = crowd(2)
    joined.send()
    boot(joined)
    joined.send()
    joined.send()
    stories = joined.core.live.stories
    waits = stories.waits_of(req_of(joined, 2).story)
    assert waits[-1].cause is WaitCause.SUSPECT


def test_a_token_clears_and_a_death_much_later_fails_nobody() -> None:
    joined = crowd(2)
    joined.runner.dies_of = set()
    for _ in range(2):
        joined.send()
        boot(joined)
        joined.step()
        joined.step()
        assert [req_of(joined, key).runner_deaths for key in (1, 2)] == [0, 0]
    joined.run_until_idle()
    assert [joined.heard.tokens[1, key] for key in (1, 2)] == [answer(1), answer(2)]


def test_a_death_before_the_first_token_again_is_the_second() -> None:
    joined = crowd(1)
    for _ in range(2):
        joined.send()
        boot(joined)
    joined.heard.take(joined.core)
    assert joined.heard.cause(1) is FinishCause.FAILED


def test_a_suspect_is_not_tried_beside_one_that_has_not_had_a_token_either() -> None:
    joined = crowd(1)
    joined.send()
    boot(joined)
    joined.core.submit(1, submission(3, priority=5, max_tokens=5))
    joined.send()
    assert running(joined) == [3]
    joined.deliver_all()
    joined.send()
    assert running(joined) == [1, 3]


def test_a_suspect_that_nobody_wants_any_more_holds_nobody_up() -> None:
    joined = crowd(2)
    joined.send()
    boot(joined)
    joined.send()
    assert running(joined) == [1]
    joined.core.cancel(1, 1)
    joined.send()
    assert running(joined) == [2]


def test_a_runner_that_was_asked_to_end_dies_of_nobody() -> None:
    joined = crowd(2)
    joined.send()
    joined.core.runner_drained()
    boot(joined)
    assert [req_of(joined, key).runner_deaths for key in (1, 2)] == [0, 0]
    joined.send()
    boot(joined)
    assert [req_of(joined, key).runner_deaths for key in (1, 2)] == [1, 1], "but the next one may"


def test_a_lost_stream_and_another_manager_are_no_deaths() -> None:
    joined = crowd(1)
    joined.send()
    joined.cut()
    joined.attach()
    joined.cut()
    joined.runner.last_manager_id = "another"
    joined.attach()
    assert req_of(joined, 1).runner_deaths == 0
