"""What the runner must remember of rows and pages to refuse a plan that would harm; nothing more.

A plan is checked against the books as they stand after every plan accepted before it, before
anything of it is executed. The answer is a pure function of the plan and those books.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servicekit.arith import ceil_div
from servicekit.plan import BoolArray, Int32Array, Plan, Refusal, RunnerDescription


class _BrokenError(Exception):
    """A rule that the plan breaks."""

    def __init__(self, reason: str, message: str, rows: Any = ()) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.rows = tuple(sorted({int(row) for row in rows}))


class _Change(NamedTuple):
    """An entry of a column before this plan changed it."""

    column: NDArray[Any]
    at: Any
    before: NDArray[Any]


class Books:
    """Which rows are open, how long they are, and how many (row, first position) point into each
    page.

    `page_of[row, n]` is the page of positions `n * page_size …`; the dummy page where nothing is
    mapped.
    """

    def __init__(self, runner: RunnerDescription) -> None:
        self._runner = runner
        self._page_size = runner.page_size
        self._pages_a_row = ceil_div(runner.max_seq_len, runner.page_size)
        self._dummy_page = runner.num_pages
        self.last_plan_id = 0
        num_rows = runner.num_rows
        self._open: BoolArray = np.zeros(num_rows, dtype=np.bool_)
        self._started: BoolArray = np.zeros(num_rows, dtype=np.bool_)  # its length is known
        self._sampled: BoolArray = np.zeros(num_rows, dtype=np.bool_)
        self._len: Int32Array = np.zeros(num_rows, dtype=np.int32)
        self._page_of: Int32Array = np.full(
            (num_rows, self._pages_a_row), self._dummy_page, dtype=np.int32
        )
        self._pointers: Int32Array = np.zeros(runner.num_pages + 1, dtype=np.int32)
        self._changes: list[_Change] = []

    def accept(self, plan: Plan) -> Refusal | None:
        """Take a plan into the books and return None; or say why not, the books as they were."""
        last = self.last_plan_id
        try:
            self._check_shape(plan)
            self._close(plan)
            self._open_rows(plan)
            self._write(plan)
            self._step(plan)
        except _BrokenError as broken:
            for change in reversed(self._changes):
                change.column[change.at] = change.before
            return Refusal(plan.plan_id, broken.reason, broken.message, broken.rows, last)
        finally:
            self._changes.clear()
        self.last_plan_id = plan.plan_id
        return None

    def _set(self, column: NDArray[Any], at: Any, value: Any) -> None:
        self._changes.append(_Change(column, at, np.copy(column[at])))
        column[at] = value

    def _add_pointers(self, page_ids: Int32Array, change: int) -> None:
        distinct, counts = np.unique(page_ids, return_counts=True)
        self._set(self._pointers, distinct, self._pointers[distinct] + change * counts)

    def _check_shape(self, plan: Plan) -> None:
        if plan.plan_id != self.last_plan_id + 1:
            raise _BrokenError("PLAN_GAP", f"plan {plan.plan_id} after plan {self.last_plan_id}")
        if not len(plan.write_rows) == len(plan.write_positions) == len(plan.write_locs):
            raise _BrokenError(
                "MALFORMED", "write_rows, write_positions and write_locs differ in length"
            )
        lengths = {
            len(column)
            for column in (
                plan.step_rows,
                plan.step_cached_lens,
                plan.step_extend_lens,
                plan.step_num_literals,
                plan.step_samples,
            )
        }
        if len(lengths) != 1:
            raise _BrokenError("MALFORMED", "the step_ arrays differ in length")
        if np.any(plan.step_num_literals < 0) or plan.step_num_literals.sum() != len(
            plan.literal_ids
        ):
            raise _BrokenError(
                "MALFORMED",
                f"step_num_literals do not add up to {len(plan.literal_ids)} literal_ids",
            )

    def _known(self, rows: Int32Array, what: str) -> None:
        outside = (rows < 0) | (rows >= self._runner.num_rows)
        if np.any(outside):
            raise _BrokenError(
                "UNKNOWN_ROW",
                f"{what} of row {rows[outside][0]}, there are {self._runner.num_rows}",
            )

    def _known_open(self, rows: Int32Array, what: str) -> None:
        self._known(rows, what)
        shut = rows[~self._open[rows]]
        if len(shut):
            raise _BrokenError("UNKNOWN_ROW", f"{what} of row {shut[0]}, which is not open", shut)

    def _distinct(self, rows: Int32Array, what: str) -> None:
        distinct, counts = np.unique(rows, return_counts=True)
        if len(distinct) != len(rows):
            raise _BrokenError(
                "ROW_TWICE", f"row {distinct[counts > 1][0]} {what} twice", distinct[counts > 1]
            )

    def _close(self, plan: Plan) -> None:
        if plan.reset_rows:
            self._set(self._open, slice(None), False)
            self._set(self._page_of, slice(None), self._dummy_page)
            self._set(self._pointers, slice(None), 0)
        rows = plan.close_rows
        if not len(rows):
            return
        self._known_open(rows, "a close")
        self._distinct(rows, "closed")
        pages = self._page_of[rows]
        self._add_pointers(pages[pages != self._dummy_page], -1)
        self._set(self._page_of, rows, self._dummy_page)
        self._set(self._open, rows, False)

    def _open_rows(self, plan: Plan) -> None:
        if not plan.open_rows:
            return
        rows = np.array([row.table_idx for row in plan.open_rows], dtype=np.int32)
        self._known(rows, "an open")
        self._distinct(rows, "opened")
        already = rows[self._open[rows]]
        if len(already):
            raise _BrokenError("ROW_TWICE", f"row {already[0]} is open and opened again", already)
        self._set(self._open, rows, True)
        self._set(self._started, rows, False)
        self._set(self._sampled, rows, False)
        self._set(self._len, rows, 0)

    def _write(self, plan: Plan) -> None:
        if not len(plan.write_rows):
            return
        rows, positions, locs = plan.write_rows, plan.write_positions, plan.write_locs
        page_size = self._page_size
        self._known_open(rows, "a table write")
        if np.any(wrong := (positions < 0) | (positions >= self._pages_a_row * page_size)):
            raise _BrokenError(
                "POSITION",
                f"a table write past position {self._pages_a_row * page_size - 1}",
                rows[wrong],
            )
        if np.any(wrong := (locs < 0) | (locs >= self._runner.pool_tokens)):
            raise _BrokenError(
                "TABLE_WRITE", f"a loc outside 0 … {self._runner.pool_tokens - 1}", rows[wrong]
            )
        if np.any(wrong := np.bincount(rows) % page_size != 0):
            raise _BrokenError(
                "TABLE_WRITE", "the table write does not cover whole pages", np.flatnonzero(wrong)
            )
        order = np.argsort(
            rows.astype(np.int64) * (self._pages_a_row * page_size) + positions, kind="stable"
        )
        rows = rows[order].reshape(-1, page_size)
        positions = positions[order].reshape(-1, page_size)
        locs = locs[order].reshape(-1, page_size)
        inside = np.arange(page_size, dtype=np.int32)
        whole = (
            (rows == rows[:, :1]).all(axis=1)
            & (positions == positions[:, :1] + inside).all(axis=1)
            & (locs == locs[:, :1] + inside).all(axis=1)
            & (positions[:, 0] % page_size == 0)
            & (locs[:, 0] % page_size == 0)
        )
        if not whole.all():
            raise _BrokenError(
                "TABLE_WRITE",
                "entries that are not one whole page, in order, once each",
                rows[~whole, 0],
            )
        at = (rows[:, 0], positions[:, 0] // page_size)
        again = (at[0][1:] == at[0][:-1]) & (at[1][1:] == at[1][:-1])  # they are in order
        if np.any(again):
            raise _BrokenError("TABLE_WRITE", "a (row, position) twice", at[0][1:][again])
        before = self._page_of[at]
        self._add_pointers(before[before != self._dummy_page], -1)
        page_ids = locs[:, 0] // page_size
        self._add_pointers(page_ids, 1)
        self._set(self._page_of, at, page_ids)

    def _step(self, plan: Plan) -> None:
        rows = plan.step_rows
        if not len(rows):
            return
        cached, extend, literals = (
            plan.step_cached_lens,
            plan.step_extend_lens,
            plan.step_num_literals,
        )
        self._known_open(rows, "a step")
        self._distinct(rows, "steps")
        from_device = literals == 0
        if np.any(
            wrong := (extend < 1)
            | (literals != np.where(from_device, 0, extend))
            | (from_device & (extend != 1))
        ):
            raise _BrokenError(
                "EXTEND_LEN",
                f"extend_len {extend[wrong][0]} with {literals[wrong][0]} ids",
                rows[wrong],
            )
        if np.any(
            wrong := (cached < 0) | (cached.astype(np.int64) + extend > self._runner.max_seq_len)
        ):
            raise _BrokenError(
                "POSITION", f"positions past max_seq_len {self._runner.max_seq_len}", rows[wrong]
            )
        if np.any(wrong := self._started[rows] & (cached != self._len[rows])):
            raise _BrokenError(
                "CACHED_LEN",
                f"cached_len {cached[wrong][0]} of a row with length {self._len[rows[wrong]][0]}",
                rows[wrong],
            )
        if np.any(wrong := from_device & ~self._sampled[rows]):
            raise _BrokenError(
                "NEVER_SAMPLED",
                "the token last sampled, in a row that has not sampled",
                rows[wrong],
            )
        if np.any((plan.literal_ids < 0) | (plan.literal_ids >= self._runner.vocab_size)):
            wrong_ids = (plan.literal_ids < 0) | (plan.literal_ids >= self._runner.vocab_size)
            named = np.repeat(rows, literals)[wrong_ids]
            raise _BrokenError(
                "VOCAB",
                f"token id {plan.literal_ids[wrong_ids][0]} of {self._runner.vocab_size}",
                named,
            )
        self._check_stores(rows, cached, extend)
        self._set(self._len, rows, cached + extend)
        self._set(self._started, rows, True)
        self._set(self._sampled, rows, self._sampled[rows] | plan.step_samples)

    def _check_stores(self, rows: Int32Array, cached: Int32Array, extend: Int32Array) -> None:
        """Every page stored into is pointed into once; every page before it is mapped."""
        first = cached // self._page_size
        counts = (cached + extend - 1) // self._page_size - first + 1
        row_of = np.repeat(rows, counts)
        nth = np.arange(int(counts.sum()), dtype=np.int32) - np.repeat(
            np.cumsum(counts) - counts, counts
        )
        stored = self._page_of[row_of, np.repeat(first, counts) + nth]
        wrong = (stored == self._dummy_page) | (self._pointers[stored] != 1)
        if np.any(wrong):
            page = int(stored[wrong][0])
            if page == self._dummy_page:
                raise _BrokenError(
                    "STORE", f"row {row_of[wrong][0]} stores where no page is mapped", row_of[wrong]
                )
            named = np.flatnonzero((self._page_of == page).any(axis=1))
            raise _BrokenError(
                "STORE",
                f"a store into page {page}, which {self._pointers[page]} rows point into",
                named,
            )
        fresh = np.flatnonzero(~self._started[rows] & (cached > 0)).tolist()
        for (
            nth_row
        ) in fresh:  # only a row that opens on cached pages: its whole prefix must be there
            if np.any(self._page_of[rows[nth_row], : first[nth_row]] == self._dummy_page):
                raise _BrokenError(
                    "POSITION",
                    f"row {rows[nth_row]} has unmapped positions before {cached[nth_row]}",
                    [rows[nth_row]],
                )
