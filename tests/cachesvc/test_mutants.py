"""The suite finds each of these bugs when it is planted; a mutant that survives fails."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.cachesvc import (
    journal_histories,
    journal_mutants,
    page_mutants,
    request_mutants,
    runner_histories,
    stream_mutants,
    suspect_mutants,
    tree_mutants,
)
from tests.cachesvc.directed_histories import History
from tests.cachesvc.machine import ManagerMachine
from tests.cachesvc.mutants import Mutant
from tests.cachesvc.tree_machine import TreeMachine

HISTORIES = [*journal_histories.HISTORIES, *runner_histories.HISTORIES]
MUTANTS = [
    *request_mutants.MUTANTS,
    *stream_mutants.MUTANTS,
    *journal_mutants.MUTANTS,
    *suspect_mutants.MUTANTS,
    *page_mutants.MUTANTS,
    *tree_mutants.MUTANTS,
]


def find_a_failing_history() -> None:
    """Directed ones first, then the tree alone, which is quick, then the whole manager."""
    for history in HISTORIES:
        history()
    for machine, max_examples in ((TreeMachine, 100), (ManagerMachine, 500)):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=max_examples,
                stateful_step_count=40,
                derandomize=True,
                deadline=None,
                database=None,
                phases=(Phase.generate,),
                suppress_health_check=list(HealthCheck),
            ),
        )


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_without_a_mutant_passes(history: History) -> None:
    history()


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
def test_the_suite_finds(plant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017, PT011 # however it shows
        find_a_failing_history()
