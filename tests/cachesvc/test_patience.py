"""How long a runner may be silent, by the work it has and how long work took lately."""

from __future__ import annotations

import pytest

from cachesvc.patience import FORGOTTEN_BY, GENEROSITY, UNMEASURED_S_PER_TOKEN, Patience

SECOND_US = 1_000_000


@pytest.fixture
def patience() -> Patience:
    return Patience(silence_s=10)


def test_before_anything_was_measured_it_is_generous(patience: Patience) -> None:
    assert patience.allowed_s(0) == 10
    assert patience.allowed_s(2048) == 10 + GENEROSITY * 2048 * UNMEASURED_S_PER_TOKEN > 400


def test_a_step_like_those_before_may_take_several_times_as_long(patience: Patience) -> None:
    patience.note(2000, 8 * SECOND_US)
    patience.note(1, SECOND_US // 10)
    assert patience.allowed_s(1) == 10 + GENEROSITY * 0.1
    assert patience.allowed_s(2000) == 10 + GENEROSITY * 8


def test_the_slowest_of_a_kind_counts(patience: Patience) -> None:
    for step_us in (1, 3, 2):
        patience.note(1, step_us * SECOND_US)
    assert 10 + GENEROSITY * 2.9 < patience.allowed_s(1) < 10 + GENEROSITY * 3


def test_what_was_slow_once_is_forgotten(patience: Patience) -> None:
    patience.note(1, 60 * SECOND_US)
    for _ in range(8 * FORGOTTEN_BY):
        patience.note(1, SECOND_US)
    assert patience.allowed_s(1) < 10 + GENEROSITY * 1.1


def test_a_step_between_two_kinds_may_take_as_long_as_the_larger(patience: Patience) -> None:
    patience.note(1, SECOND_US // 10)
    patience.note(1000, 4 * SECOND_US)
    assert patience.allowed_s(100) == 10 + GENEROSITY * 4


def test_a_larger_step_than_any_may_take_longer_in_proportion(patience: Patience) -> None:
    """Of 512 to 1,023 tokens, the fewest are taken for what took so long."""
    patience.note(600, 2 * SECOND_US)
    assert patience.allowed_s(2048) == 10 + GENEROSITY * 8


def test_a_larger_step_is_not_allowed_less_than_a_smaller_one(patience: Patience) -> None:
    patience.note(4, 9 * SECOND_US)
    patience.note(64, SECOND_US)
    assert patience.allowed_s(64) == 10 + GENEROSITY * 9


def test_a_plan_without_work_is_a_kind_of_its_own(patience: Patience) -> None:
    patience.note(0, 3)
    assert patience.allowed_s(2048) > 400
