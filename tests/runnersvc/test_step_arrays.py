"""A plan laid out as one step: decoding rows first, whatever the plan's order."""

from __future__ import annotations

import pytest

from runnersvc.step_arrays import step_arrays
from tests.runnersvc.tiny_llama import Row, make_plan

pytestmark = pytest.mark.torch


def test_decoding_rows_come_first_and_what_samples_keeps_the_order_of_the_plan() -> None:
    plan = make_plan(
        [
            Row(4, 2, [7, 8, 9]),
            Row(1, 5),
            Row(0, 0, [3, 4], samples=False),
            Row(3, 9),
            Row(2, 6, [5]),
        ]
    )
    step, sampling = step_arrays(plan)
    assert {name: array.tolist() for name, array in step._asdict().items()} == {
        "decode_rows": [1, 3],
        "decode_seq_lens": [6, 10],
        "literal_rows": [4, 4, 4, 0, 0, 2],
        "literal_positions": [2, 3, 4, 0, 1, 6],
        "literal_ids": [7, 8, 9, 3, 4, 5],
        "prefill_rows": [4, 0, 2],
        "prefill_cached_lens": [2, 0, 6],
        "prefill_extend_lens": [3, 2, 1],
    }
    assert {name: array.tolist() for name, array in sampling._asdict().items()} == {
        "tokens": [4, 0, 1, 7],
        "rows": [4, 1, 3, 2],
        "positions": [5, 6, 10, 7],
    }


def test_steps_of_one_kind_have_nothing_of_the_other() -> None:
    decodes, _ = step_arrays(make_plan([Row(2, 3), Row(0, 1)]))
    assert decodes.decode_rows.tolist() == [2, 0]
    assert all(len(array) == 0 for array in decodes[2:])
    prefills, sampling = step_arrays(make_plan([Row(1, 0, [5, 6], samples=False)]))
    assert prefills.literal_positions.tolist() == [0, 1]
    assert len(prefills.decode_rows) == len(sampling.tokens) == 0
