"""Whatever arrives as a plan, the books answer; and what they refuse leaves no trace."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runnersvc.bookkeeping import Books
from servicekit.plan import Plan
from servicekit.plan_codec import INT32_FIELDS
from tests.cachesvc.builders import describe, plan, row_open
from tests.cachesvc.fake_runner import FakeMemory

NUMBERS = st.one_of(
    st.integers(-2, 6), st.sampled_from((8, 16, 24, 31, 32, 40, 2**31 - 1, -(2**31)))
)
LISTS = st.lists(NUMBERS, max_size=6)
SOUND: dict[str, list[Any]] = {
    "write_rows": [0] * 4,
    "write_positions": [0, 1, 2, 3],
    "write_locs": [0, 1, 2, 3],
    "step_rows": [0],
    "step_cached_lens": [0],
    "step_extend_lens": [2],
    "step_num_literals": [2],
    "step_samples": [True],
    "literal_ids": [1, 2],
}


@st.composite
def plans(draw: st.DrawFn, plan_id: int) -> Plan:
    """A sound first plan with some of its columns replaced by anything."""
    fields: dict[str, Any] = dict(SOUND)
    for name in draw(st.sets(st.sampled_from(INT32_FIELDS), max_size=4)):
        fields[name] = draw(LISTS)
    rows = draw(st.lists(NUMBERS, max_size=2)) if draw(st.booleans()) else [0]
    return plan(
        plan_id,
        reset_rows=draw(st.booleans()),
        open_rows=tuple(row_open(idx) for idx in rows),
        **fields,
    )


def trace(books: Books) -> list[bytes]:
    return [column.tobytes() for column in vars(books).values() if isinstance(column, np.ndarray)]


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.data())
def test_every_plan_is_accepted_or_refused_and_an_accepted_one_can_be_executed(
    draws: st.DataObject,
) -> None:
    books, memory = Books(describe()), FakeMemory(describe())
    for _ in range(3):
        arriving = draws.draw(plans(books.last_plan_id + 1))
        before = trace(books)
        refusal = books.accept(arriving)
        if refusal is None:
            memory.rows = {} if arriving.reset_rows else memory.rows
            assert len(memory.execute(arriving)) == arriving.step_samples.sum()
        else:
            assert trace(books) == before
            assert refusal.last_accepted_plan_id == books.last_plan_id
            assert refusal.message
