"""A seed is a list of faults and of requests; what a run did not reach is said."""

from __future__ import annotations

from collections import Counter

from tests.chaos.faults import (
    GATEWAY,
    KILL,
    MANAGER,
    RESET,
    RUNNER,
    SERVICES,
    STOP,
    STREAM,
    Fault,
    faults_of,
)
from tests.chaos.figures import moments_of
from tests.chaos.pool import asked_of, use_of
from tests.chaos.recovery import Strike

COUNTS = {RUNNER: 20, MANAGER: 20, STREAM: 20, GATEWAY: 10}
PROMPTS = [[nth] * 9 for nth in range(20)]


def test_a_seed_gives_the_same_faults_and_requests_again() -> None:
    assert faults_of(3, COUNTS) == faults_of(3, COUNTS) != faults_of(4, COUNTS)
    pool = asked_of(3, PROMPTS, (8, 24), (0.5,))
    assert pool == asked_of(3, PROMPTS, (8, 24), (0.5,))
    uses = [use_of(3, number, pool) for number in range(50)]
    assert uses == [use_of(3, number, pool) for number in range(50)]


def test_a_list_of_faults_has_as_many_of_each_service_as_asked_for_and_every_kind() -> None:
    faults = faults_of(3, COUNTS)
    assert Counter(fault.service for fault in faults) == COUNTS
    kinds = {(fault.service, fault.kind) for fault in faults}
    assert kinds == {(each, KILL) for each in SERVICES if each != STREAM} | {
        (each, STOP) for each in SERVICES if each != STREAM
    } | {(STREAM, RESET)}
    assert {fault.target for fault in faults if fault.service == STREAM} == {
        "execute",
        "session_0",
        "session_1",
    }


def test_kills_and_resets_lose_what_is_on_its_way_either_way_and_stops_lose_nothing() -> None:
    faults = faults_of(3, COUNTS)
    of_execute = {way for fault in faults for stream, way in fault.losses if stream == "execute"}
    of_sessions = {way for fault in faults for stream, way in fault.losses if stream != "execute"}
    assert of_execute == of_sessions == {"to_back", "to_front"}
    assert not any(fault.losses for fault in faults if fault.kind == STOP)
    assert not all(fault.losses for fault in faults if fault.kind == KILL)


def test_a_pool_has_greedy_and_drawn_requests_and_some_of_two_choices() -> None:
    pool = asked_of(3, PROMPTS, (8, 24), (0.5,))
    assert Counter(each.is_greedy for each in pool) == {True: 10, False: 10}
    assert {each.num_choices for each in pool} == {1, 2}


def test_a_moment_that_no_line_tells_is_not_counted_as_reached() -> None:
    strike = Strike(
        Fault(0, RUNNER, KILL, "runnersvc", "two_plans", 0, 0, (), 0, in_recovery=False), 0, []
    )
    assert moments_of(strike) == ["untold"]
    strike.plans_in_flight, strike.prefill_tokens = 2, 0
    assert moments_of(strike) == ["two_plans"]
    strike.plans_in_flight, strike.prefill_tokens = 1, 12
    assert moments_of(strike) == ["one_plan", "prefill"]
