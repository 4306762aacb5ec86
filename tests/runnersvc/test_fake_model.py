"""Chosen tokens and times; rows and page table are real."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnersvc.fake_model import DrawnTokens, FakeModel, ScriptedTokens, ToldTokens
from servicekit.plan import Plan
from tests.cachesvc.builders import describe, ints, plan, row_open
from tests.runnersvc.plans import decode, prefill

SEEDS = st.integers(-(2**63), 2**63 - 1)


def drawn(seed: int, choice: int, position: int, vocab_size: int = 16) -> int:
    one = DrawnTokens(vocab_size).choose(
        np.array([seed], dtype=np.int64), ints(choice), ints(position)
    )
    return int(one[0])


@settings(derandomize=True, deadline=None)
@given(st.lists(st.tuples(SEEDS, st.integers(0, 9), st.integers(0, 2**20)), max_size=8))
def test_a_drawn_token_depends_on_seed_choice_and_position_and_on_no_neighbour(
    rows: list[tuple[int, int, int]],
) -> None:
    seeds = np.array([seed for seed, _, _ in rows], dtype=np.int64)
    choices, positions = ints(*[row[1] for row in rows]), ints(*[row[2] for row in rows])
    together = DrawnTokens(16).choose(seeds, choices, positions)
    assert together.dtype == np.int32
    assert together.tolist() == [drawn(*row) for row in rows]
    assert all(0 <= token_id < 16 for token_id in together.tolist())


def test_drawn_tokens_differ_along_a_row_and_between_seeds_and_choices() -> None:
    along = [drawn(1, 0, position, 2**20) for position in range(50)]
    assert len(set(along)) == 50
    assert drawn(1, 0, 5, 2**20) != drawn(2, 0, 5, 2**20) != drawn(1, 1, 5, 2**20)


def test_a_row_draws_with_the_seed_and_choice_that_it_opened_with() -> None:
    model = FakeModel(describe(), DrawnTokens(16))
    assert model.execute(prefill()).tolist() == [drawn(1, 0, 3)]
    assert model.execute(decode(2, 3)).tolist() == [drawn(1, 0, 4)]
    again = prefill(3, open_rows=(row_open(0, seed=-7),))
    assert model.execute(again).tolist() == [drawn(-7, 0, 3)]


def test_a_script_is_cycled_by_position() -> None:
    model = FakeModel(describe(), ScriptedTokens([5, 6, 7]))
    assert model.execute(prefill()).tolist() == [5]  # position 3
    assert [model.execute(decode(at, at + 1)).tolist() for at in (2, 3, 4)] == [[6], [7], [5]]


def test_told_tokens_come_plan_by_plan_also_for_plans_that_sample_nothing() -> None:
    told = ToldTokens([ints(9), ints(), ints(8)], beyond=ScriptedTokens([1]))
    model = FakeModel(describe(), told)
    assert model.execute(prefill()).tolist() == [9]
    assert model.execute(plan(2)).tolist() == []
    assert model.execute(decode(3, 3)).tolist() == [8]
    assert model.execute(decode(4, 4)).tolist() == [1], "beyond what was told"


def test_its_page_table_holds_what_was_written_and_else_the_dummy_page() -> None:
    model = FakeModel(describe(), ScriptedTokens([5]))
    model.execute(prefill(write_locs=[8, 9, 10, 11]))
    table = model.read_table()
    assert table.shape == (4, 32)
    assert table[0, :8].tolist() == [8, 9, 10, 11, 32, 33, 34, 35]
    assert table[3, -4:].tolist() == [32, 33, 34, 35]


@pytest.mark.parametrize(("work", "expected_s"), [(decode(1, 3), 20), (prefill(), 50)])
def test_a_step_takes_its_time_and_that_of_its_prompt_tokens(work: Plan, expected_s: float) -> None:
    waited: list[float] = []
    model = FakeModel(describe(), ScriptedTokens([5]), step_s=20, prefill_s=10, sleep=waited.append)
    model.execute(work)
    assert waited[0] == pytest.approx(expected_s, abs=1)
