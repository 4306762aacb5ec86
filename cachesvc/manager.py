"""Pages of rows: who owns which, and the table write that tells the runner."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cachesvc.page_pool import PagePool, PoolError
from cachesvc.request import EMPTY, Req
from cachesvc.rows import RowTable
from servicekit.arith import ceil_div, table_width
from servicekit.plan import Int32Array, RunnerDescription


class IntegrityError(Exception):
    """The books do not add up: a page without owner, or with two. Names page, owner and rule."""


class TableWrite(NamedTuple):
    """Entries of the page table: parallel int32 arrays, whole pages."""

    rows: Int32Array
    positions: Int32Array
    locs: Int32Array


NO_WRITE = TableWrite(EMPTY, EMPTY, EMPTY)


class CacheManager:
    """Owns the page pool, the rows and the host mirror of the page table for one life of a runner.

    Every page is free, or private to one row: `free + private == num_pages` (`check_counters`).
    """

    def __init__(self, runner: RunnerDescription) -> None:
        self.runner = runner
        self.page_size = runner.page_size
        self.pool = PagePool(runner.num_pages, runner.page_size)
        self.rows = RowTable(runner)
        width = table_width(runner.max_seq_len, runner.page_size)
        self._page_table = np.zeros((runner.num_rows, width), dtype=np.int32)
        self._offsets = np.arange(runner.page_size, dtype=np.int32)

    @property
    def private_count(self) -> int:
        """Pages of rows."""
        return int(self.rows.num_pages.sum())

    def missing_pages(self, rows: Int32Array, device_lens: Int32Array) -> Int32Array:
        """How many pages each row lacks to hold `device_lens` tokens, int32[n]."""
        missing: Int32Array = ceil_div(device_lens, self.page_size) - self.rows.num_pages[rows]
        return missing.clip(min=0)

    def grow(self, rows: Int32Array, device_lens: Int32Array) -> TableWrite:
        """Give each row the pages it lacks to hold `device_lens` tokens. Rows are distinct.

        Errors: PoolError, with nothing changed, when the pool has too few: ask `missing_pages`
        first.
        """
        missing = self.missing_pages(rows, device_lens)
        total = int(missing.sum())
        if total == 0:
            return NO_WRITE
        first_locs = self.pool.allocate(total)
        row_of_page = np.repeat(rows, missing)
        nth_of_row = np.arange(total, dtype=np.int32) - np.repeat(
            np.cumsum(missing) - missing, missing
        )
        page_index = self.rows.num_pages[row_of_page] + nth_of_row
        write = TableWrite(
            rows=np.repeat(row_of_page, self.page_size).astype(np.int32),
            positions=((page_index * self.page_size)[:, None] + self._offsets)
            .ravel()
            .astype(np.int32),
            locs=(first_locs[:, None] + self._offsets).ravel(),
        )
        self._page_table[write.rows, write.positions] = write.locs
        self.rows.num_pages[rows] += missing
        return write

    def open_row(self, req: Req, generation: int) -> int:
        """Give `req` a row without pages; `generation` tells this opening from every other. Returns
        table_idx.
        """
        return self.rows.open(req, generation)

    def close_row(self, idx: int) -> None:
        """End a row: its pages are free for the plan that closes it.

        Errors: PoolError, with nothing changed, for a row that is not open.
        """
        if self.rows.req[idx] is None:
            raise PoolError(f"row {idx} is closed and not open")
        self.pool.free(self.first_locs(idx))
        self.rows.close(idx)

    def first_locs(self, idx: int) -> Int32Array:
        """First locs of a row's pages in order of position, int32[num_pages]."""
        end = int(self.rows.num_pages[idx]) * self.page_size
        return self._page_table[idx, : end : self.page_size].copy()

    def locs(self, idx: int) -> Int32Array:
        """The row of the page table, as far as it has pages."""
        return self._page_table[idx, : int(self.rows.num_pages[idx]) * self.page_size].copy()

    def check_counters(self) -> None:
        """Check free + private == num_pages by the counters, cheap enough after every plan.

        Errors: IntegrityError.
        """
        free, private = self.pool.free_count, self.private_count
        if free + private != self.pool.num_pages:
            raise IntegrityError(
                f"free {free} + private {private} != num_pages {self.pool.num_pages}"
            )

    def check_integrity(self) -> None:
        """Recount page by page: each is free or of one row, and locs run on inside a page. Errors:
        IntegrityError.
        """
        self.check_counters()
        try:
            self.pool.check_integrity()
        except PoolError as error:
            raise IntegrityError(str(error)) from error
        owner: dict[int, int] = {}
        for idx in range(self.rows.num_rows):
            locs = self.locs(idx).reshape(-1, self.page_size)
            if not np.array_equal(locs, locs[:, :1] + self._offsets) or np.any(
                locs[:, 0] % self.page_size
            ):
                raise IntegrityError(
                    f"row {idx}: locs do not run on inside a page: {locs.tolist()}"
                )
            for page_id in (locs[:, 0] // self.page_size).tolist():
                if self.pool.is_free(np.array([page_id]))[0]:
                    raise IntegrityError(f"page {page_id} is free and of row {idx}")
                if page_id in owner:
                    raise IntegrityError(f"page {page_id} is of rows {owner[page_id]} and {idx}")
                owner[page_id] = idx
