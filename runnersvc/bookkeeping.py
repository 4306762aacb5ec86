"""What the runner must remember of rows and pages to refuse a plan that would harm; nothing more.

A plan is checked against the books as they stand after every plan accepted before it, before
anything of it is executed. The answer is a pure function of the plan and those books.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import setitem
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from runnersvc.plan_rules import (
    BrokenRuleError,
    are_below,
    check_distinct,
    check_known,
    check_literals,
    check_open,
    check_row_rules,
    check_shape,
    pages_of_write,
)
from servicekit.arith import ceil_div
from servicekit.plan import BoolArray, Int32Array, Plan, Refusal, RunnerDescription


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
        self._undo: list[Callable[[], None]] = []  # of what this plan changed so far

    @property
    def open_count(self) -> int:
        """Rows that are open."""
        return int(np.count_nonzero(self._open))

    def accept(self, plan: Plan) -> Refusal | None:
        """Take a plan into the books and return None; or say why not, the books as they were."""
        last = self.last_plan_id
        try:
            if plan.plan_id != last + 1:
                raise BrokenRuleError("PLAN_GAP", f"plan {plan.plan_id} after plan {last}")
            check_shape(plan)
            self._close(plan)
            self._open_rows(plan)
            self._write(plan)
            if self._decodes_well(plan):
                self._len[plan.step_rows] += 1
            else:
                self._step(plan)
        except BrokenRuleError as broken:
            for undo in reversed(self._undo):
                undo()
            return Refusal(plan.plan_id, broken.reason, broken.message, broken.rows, last)
        finally:
            self._undo.clear()
        self.last_plan_id = plan.plan_id
        return None

    def _decodes_well(self, plan: Plan) -> bool:
        """Whether the step is of decoding rows alone and breaks no rule: most are, and all rules
        are asked here in a third of the time. Else `_step` says which of them is broken.
        """
        rows, cached = plan.step_rows, plan.step_cached_lens
        if not plan.only_decodes or not are_below(rows, len(self._len)):
            return False
        goes_on = self._open[rows] & self._sampled[rows] & (self._len[rows] == cached)
        if np.count_nonzero(goes_on) < len(rows) or np.maximum.reduce(np.bincount(rows)) > 1:
            return False
        if not are_below(cached, self._runner.max_seq_len):
            return False
        stored = self._page_of[rows, cached // self._page_size]
        return bool(np.count_nonzero(self._pointers[stored] == 1) == len(rows))

    def _set(self, column: NDArray[Any], at: Any, value: Any) -> None:
        before = column[at].copy() if isinstance(at, slice) else column[at]
        self._undo.append(partial(setitem, column, at, before))
        column[at] = value

    def _add_pointers(self, page_ids: Int32Array, change: int) -> None:
        self._undo.append(partial(np.add.at, self._pointers, page_ids, -change))
        np.add.at(self._pointers, page_ids, change)

    def _close(self, plan: Plan) -> None:
        if plan.reset_rows:
            self._set(self._open, slice(None), False)
            self._set(self._page_of, slice(None), self._dummy_page)
            self._set(self._pointers, slice(None), 0)
        rows = plan.close_rows
        if not len(rows):
            return
        check_known(rows, "a close", self._runner)
        check_open(rows, "a close", self._open)
        check_distinct(rows, "closed")
        pages = self._page_of[rows]
        self._add_pointers(pages[pages != self._dummy_page], -1)
        self._set(self._page_of, rows, self._dummy_page)
        self._set(self._open, rows, False)

    def _open_rows(self, plan: Plan) -> None:
        if not plan.open_rows:
            return
        rows = np.array([row.table_idx for row in plan.open_rows], dtype=np.int32)
        check_known(rows, "an open", self._runner)
        check_distinct(rows, "opened")
        check_row_rules(plan, self._runner.vocab_size)
        already = rows[self._open[rows]]
        if len(already):
            raise BrokenRuleError(
                "ROW_TWICE", f"row {already[0]} is open and opened again", already
            )
        self._set(self._open, rows, True)
        self._set(self._started, rows, False)
        self._set(self._sampled, rows, False)
        self._set(self._len, rows, 0)

    def _write(self, plan: Plan) -> None:
        if not len(plan.write_rows):
            return
        writes = pages_of_write(plan, self._runner, self._pages_a_row)
        check_open(writes.rows, "a table write", self._open)
        at = (writes.rows, writes.page_indexes)
        before = self._page_of[at]
        before = before[before != self._dummy_page]
        if len(before):
            self._add_pointers(before, -1)
        self._add_pointers(writes.page_ids, 1)
        self._set(self._page_of, at, writes.page_ids)

    def _step(self, plan: Plan) -> None:
        rows = plan.step_rows
        if not len(rows):
            return
        check_known(rows, "a step", self._runner)
        check_open(rows, "a step", self._open)
        check_distinct(rows, "steps")
        cached, extend, literals = (
            plan.step_cached_lens,
            plan.step_extend_lens,
            plan.step_num_literals,
        )
        device_lens = cached + extend
        sampled, started = self._sampled[rows], self._started[rows]
        brings_ids = (literals == extend) & (extend > 0)
        from_device = (literals == 0) & (extend == 1) & sampled
        in_row = (cached >= 0) & (device_lens > cached) & (device_lens <= self._runner.max_seq_len)
        goes_on = ~started | (cached == self._len[rows])
        if not ((brings_ids | from_device) & in_row & goes_on).all():
            self._raise_step_fault(plan)
        check_literals(plan, self._runner.vocab_size)
        most = self._runner.max_step_tokens
        if most and (count := int(extend.sum())) > most:
            raise BrokenRuleError("STEP_TOKENS", f"a step of {count} tokens, at most {most}")
        self._check_stores(rows, cached, extend)
        if not started.all():
            self._check_prefixes(rows[~started], cached[~started])
            self._set(self._started, rows, True)
        self._set(self._len, rows, device_lens)
        if (plan.step_samples & ~sampled).any():
            self._set(self._sampled, rows, sampled | plan.step_samples)

    def _raise_step_fault(self, plan: Plan) -> NoReturn:
        """The rule that a step breaks, the first in the order of RefusalReason's comments."""
        rows, cached, extend = plan.step_rows, plan.step_cached_lens, plan.step_extend_lens
        literals = plan.step_num_literals
        of_device = literals == 0
        wrong = (extend < 1) | (~of_device & (literals != extend)) | (of_device & (extend != 1))
        if wrong.any():
            told = f"extend_len {extend[wrong][0]} with {literals[wrong][0]} ids"
            raise BrokenRuleError("EXTEND_LEN", told, rows[wrong])
        max_seq_len = self._runner.max_seq_len
        wrong = (cached < 0) | (cached.astype(np.int64) + extend > max_seq_len)
        if wrong.any():
            told = f"positions past max_seq_len {max_seq_len}"
            raise BrokenRuleError("POSITION", told, rows[wrong])
        wrong = self._started[rows] & (cached != self._len[rows])
        if wrong.any():
            length = self._len[rows[wrong]][0]
            told = f"cached_len {cached[wrong][0]} of a row with length {length}"
            raise BrokenRuleError("CACHED_LEN", told, rows[wrong])
        told = "the token last sampled, in a row that has not sampled"
        raise BrokenRuleError("NEVER_SAMPLED", told, rows[of_device & ~self._sampled[rows]])

    def _check_stores(self, rows: Int32Array, cached: Int32Array, extend: Int32Array) -> None:
        """Every page stored into is pointed into once."""
        first = cached // self._page_size
        counts = (cached + extend - 1) // self._page_size - first + 1
        row_of, page_index = rows, first
        if counts.max() > 1:  # some row stores into more than one page
            row_of = np.repeat(rows, counts)
            before = np.repeat(np.cumsum(counts) - counts, counts)
            page_index = np.repeat(first, counts) + np.arange(len(row_of)) - before
        stored = self._page_of[row_of, page_index]
        wrong = self._pointers[stored] != 1  # nothing points at the dummy page
        if not wrong.any():
            return
        page = int(stored[wrong][0])
        if page == self._dummy_page:
            told = f"row {row_of[wrong][0]} stores where no page is mapped"
            raise BrokenRuleError("STORE", told, row_of[wrong])
        told = f"a store into page {page}, which {self._pointers[page]} rows point into"
        raise BrokenRuleError("STORE", told, np.flatnonzero((self._page_of == page).any(axis=1)))

    def _check_prefixes(self, rows: Int32Array, cached: Int32Array) -> None:
        """A row that opens on cached pages has its whole prefix mapped."""
        for row, cached_len in zip(rows.tolist(), cached.tolist(), strict=True):
            mapped = self._page_of[row, : cached_len // self._page_size]
            if (mapped == self._dummy_page).any():
                told = f"row {row} has unmapped positions before {cached_len}"
                raise BrokenRuleError("POSITION", told, [row])
