"""Rules of `runner.proto` that a plan can break by itself, and the names of those it broke.

What is asked of every plan is cheap: whether all is well. Which rule was broken, and by which row,
is worked out only then.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from servicekit.plan import BoolArray, Int32Array, Plan, RunnerDescription
from servicekit.sampling import MAX_LOGPROBS


class BrokenRuleError(Exception):
    """A rule that the plan breaks: a name of RefusalReason, what was found where, rows at fault."""

    def __init__(self, reason: str, message: str, rows: Any = ()) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.rows = tuple(sorted({int(row) for row in rows}))


class PageWrites(NamedTuple):
    """A table write page by page, parallel int32 arrays."""

    rows: Int32Array
    page_indexes: Int32Array  # positions page_index * page_size …
    page_ids: Int32Array


def check_shape(plan: Plan) -> None:
    """Errors: BrokenRuleError MALFORMED for arrays that do not belong together."""
    num_entries, num_steps = len(plan.write_rows), len(plan.step_rows)
    if not num_entries == len(plan.write_positions) == len(plan.write_locs):
        raise BrokenRuleError(
            "MALFORMED", "write_rows, write_positions and write_locs differ in length"
        )
    columns = (plan.step_cached_lens, plan.step_extend_lens, plan.step_num_literals)
    if any(len(column) != num_steps for column in (*columns, plan.step_samples)):
        raise BrokenRuleError("MALFORMED", "the step_ arrays differ in length")
    literals = plan.step_num_literals
    if np.add.reduce(literals) != len(plan.literal_ids) or (
        num_steps and np.minimum.reduce(literals) < 0
    ):
        raise BrokenRuleError(
            "MALFORMED", f"step_num_literals do not add up to {len(plan.literal_ids)} literal_ids"
        )


def check_known(rows: Int32Array, what: str, runner: RunnerDescription) -> None:
    """Errors: BrokenRuleError UNKNOWN_ROW for a row that does not exist."""
    if not are_below(rows, runner.num_rows):
        outside = rows[(rows < 0) | (rows >= runner.num_rows)]
        raise BrokenRuleError(
            "UNKNOWN_ROW", f"{what} of row {outside[0]}, there are {runner.num_rows}"
        )


def check_open(rows: Int32Array, what: str, is_open: BoolArray) -> None:
    """Errors: BrokenRuleError UNKNOWN_ROW for a row that is not open."""
    if np.count_nonzero(is_open[rows]) < len(rows):
        shut = rows[~is_open[rows]]
        raise BrokenRuleError("UNKNOWN_ROW", f"{what} of row {shut[0]}, which is not open", shut)


def check_distinct(rows: Int32Array, what: str) -> None:
    """Errors: BrokenRuleError ROW_TWICE. Rows exist."""
    counts = np.bincount(rows)
    if len(rows) and counts.max() > 1:
        twice = np.flatnonzero(counts > 1)
        raise BrokenRuleError("ROW_TWICE", f"row {twice[0]} {what} twice", twice)


def check_row_rules(plan: Plan, vocab_size: int) -> None:
    """Errors: BrokenRuleError MALFORMED or VOCAB for what opened rows are told to obey."""
    for row in plan.open_rows:
        if (rules := row.rules) is None:
            continue
        if len(rules.bias_ids) != len(rules.biases):
            told = f"{len(rules.bias_ids)} bias_ids with {len(rules.biases)} biases"
            raise BrokenRuleError("MALFORMED", told, [row.table_idx])
        if rules.logprobs is not None and not 0 <= rules.logprobs <= MAX_LOGPROBS:
            told = f"logprobs of {rules.logprobs} tokens, at most {MAX_LOGPROBS}"
            raise BrokenRuleError("MALFORMED", told, [row.table_idx])
        for token_ids in (rules.bias_ids, rules.stop_token_ids, rules.history_ids):
            if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
                told = f"a rule of a token id that is not below {vocab_size}"
                raise BrokenRuleError("VOCAB", told, [row.table_idx])


def pages_of_write(plan: Plan, runner: RunnerDescription, pages_a_row: int) -> PageWrites:
    """The table write page by page.

    Errors: BrokenRuleError UNKNOWN_ROW, POSITION or TABLE_WRITE unless it is of rows and positions
    that exist, and whole pages of the pool, each (row, position) once, locs running on inside.
    """
    rows, positions, locs = plan.write_rows, plan.write_positions, plan.write_locs
    page_size, num_positions = runner.page_size, pages_a_row * runner.page_size
    if not are_below(positions, num_positions):
        wrong = (positions < 0) | (positions >= num_positions)
        last = num_positions - 1
        raise BrokenRuleError("POSITION", f"a table write past position {last}", rows[wrong])
    if not are_below(locs, runner.pool_tokens):
        wrong = (locs < 0) | (locs >= runner.pool_tokens)
        last = runner.pool_tokens - 1
        raise BrokenRuleError("TABLE_WRITE", f"a loc outside 0 … {last}", rows[wrong])
    check_known(rows, "a table write", runner)
    writes = _page_writes(rows, positions, locs, page_size)
    if writes is None:
        rows, positions, locs = _in_order(rows, positions, locs, page_size)
        writes = _page_writes(rows, positions, locs, page_size)
    if writes is None:
        whole = _are_whole_pages(rows, positions, locs, page_size)
        raise BrokenRuleError(
            "TABLE_WRITE",
            "entries that are not one whole page, in order, once each",
            rows[::page_size][~whole],
        )
    places = writes.rows.astype(np.int64) * pages_a_row + writes.page_indexes
    if len(set(places.tolist())) < len(places):
        places.sort()
        again = places[1:] == places[:-1]
        raise BrokenRuleError(
            "TABLE_WRITE", "a (row, position) twice", places[1:][again] // pages_a_row
        )
    return writes


def are_below(numbers: Int32Array, bound: int) -> bool:
    """Whether all are from 0 to `bound - 1`; a negative one is large, unsigned."""
    return not len(numbers) or bool(np.maximum.reduce(numbers.view(np.uint32)) < bound)


def _page_writes(
    rows: Int32Array, positions: Int32Array, locs: Int32Array, page_size: int
) -> PageWrites | None:
    """The entries page by page; None unless each `page_size` of them are one whole page, in order.

    Numbers that should be equal are compared as bytes: for so few that is quickest.
    """
    if len(rows) % page_size:
        return None
    first, inside = slice(None, None, page_size), np.arange(page_size, dtype=np.int32)
    page_indexes, page_ids = positions[first] // page_size, locs[first] // page_size
    at = (page_indexes * page_size)[:, None] + inside
    to = (page_ids * page_size)[:, None] + inside
    of_page = rows[first]
    if (
        at.tobytes() != positions.tobytes()
        or to.tobytes() != locs.tobytes()
        or np.repeat(of_page, page_size).tobytes() != rows.tobytes()
    ):
        return None
    return PageWrites(of_page, page_indexes, page_ids)


def _are_whole_pages(
    rows: Int32Array, positions: Int32Array, locs: Int32Array, page_size: int
) -> BoolArray:
    """For each page of entries, in the order given, whether it is one whole page; bool[pages]."""
    inside = np.arange(page_size, dtype=np.int32)
    at, to = positions.reshape(-1, page_size), locs.reshape(-1, page_size)
    row = rows.reshape(-1, page_size)
    same = (row == row[:, :1]) & (at == at[:, :1] + inside) & (to == to[:, :1] + inside)
    first = (at[:, 0] % page_size == 0) & (to[:, 0] % page_size == 0)
    whole: BoolArray = same.all(axis=1) & first
    return whole


def _in_order(
    rows: Int32Array, positions: Int32Array, locs: Int32Array, page_size: int
) -> tuple[Int32Array, Int32Array, Int32Array]:
    """The entries by row and position, when each row has as many as fill pages."""
    if (wrong := np.bincount(rows) % page_size != 0).any():
        raise BrokenRuleError(
            "TABLE_WRITE", "the table write does not cover whole pages", np.flatnonzero(wrong)
        )
    order = np.lexsort((positions, rows))
    return rows[order], positions[order], locs[order]


def check_literals(plan: Plan, vocab_size: int) -> None:
    """Errors: BrokenRuleError VOCAB for a literal id outside the vocabulary."""
    ids = plan.literal_ids
    if not are_below(ids, vocab_size):
        wrong = (ids < 0) | (ids >= vocab_size)
        named = np.repeat(plan.step_rows, plan.step_num_literals)[wrong]
        raise BrokenRuleError("VOCAB", f"token id {ids[wrong][0]} of {vocab_size}", named)
