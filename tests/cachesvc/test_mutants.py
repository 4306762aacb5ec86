"""The state machine finds each of these bugs when it is planted; a mutant that survives fails."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.cachesvc.builders import describe, submission
from tests.cachesvc.machine import ManagerMachine
from tests.cachesvc.mutants import MUTANTS, Mutant
from tests.cachesvc.world import World


def lose_a_result_that_is_not_acknowledged_yet() -> None:
    """Directed, since random histories come here seldom: plan 1 is executed and plan 2 is read when
    the stream is lost, with the result of plan 1 on its way.
    """
    world = World(describe(), budget=64, credits=2)
    world.submit(1, submission(1, [1, 2, 3], max_tokens=8))
    assert world.send()
    assert world.send()
    world.deliver_plan()
    world.execute()
    world.deliver_plan()
    world.wire.cut()
    world.attach()
    world.check_end()


def find_a_failing_history() -> None:
    lose_a_result_that_is_not_acknowledged_yet()
    run_state_machine_as_test(
        ManagerMachine,
        settings=settings(
            max_examples=500,
            stateful_step_count=40,
            derandomize=True,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_directed_history_passes_without_a_mutant() -> None:
    lose_a_result_that_is_not_acknowledged_yet()


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
def test_the_state_machine_finds(plant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017, PT011 # however it shows
        find_a_failing_history()
