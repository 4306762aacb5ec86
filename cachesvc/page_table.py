"""The host mirror of the page table, and the writes that keep the device's equal to it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cachesvc.request import EMPTY
from servicekit.arith import table_width
from servicekit.plan import Int32Array, RunnerDescription


class TableWrite(NamedTuple):
    """Entries of the page table: parallel int32 arrays, whole pages."""

    rows: Int32Array
    positions: Int32Array
    locs: Int32Array


NO_WRITE = TableWrite(EMPTY, EMPTY, EMPTY)


def joined(writes: list[TableWrite]) -> TableWrite:
    """The writes as one, in order."""
    given = [write for write in writes if len(write.rows)]
    if len(given) <= 1:
        return given[0] if given else NO_WRITE
    return TableWrite(*(np.concatenate(columns) for columns in zip(*given, strict=True)))


class PageTable:
    """`locs[table_idx, position]`, int32, for positions that are mapped; others are left over."""

    def __init__(self, runner: RunnerDescription) -> None:
        self._page_size = runner.page_size
        self._offsets = np.arange(runner.page_size, dtype=np.int32)
        width = table_width(runner.max_seq_len, runner.page_size)
        self.locs = np.zeros((runner.num_rows, width), dtype=np.int32)

    def first_locs(self, idx: int, begin: int, end: int) -> Int32Array:
        """First locs of pages begin … end - 1 of a row, a copy."""
        page_size = self._page_size
        return self.locs[idx, begin * page_size : end * page_size : page_size].copy()

    def write(
        self, rows: NDArray[np.intp], page_indexes: Int32Array, first_locs: Int32Array
    ) -> TableWrite:
        """Map pages, each by its row and which of the row's pages it is; parallel arrays."""
        write = TableWrite(
            rows=rows.astype(np.int32).repeat(self._page_size),
            positions=((page_indexes * self._page_size)[:, None] + self._offsets).ravel(),
            locs=(first_locs[:, None] + self._offsets).ravel(),
        )
        self.locs[write.rows, write.positions] = write.locs
        return write

    def write_run(self, idx: int, page_index: int, first_locs: Int32Array) -> TableWrite:
        """Map pages of one row that follow each other."""
        count = len(first_locs)
        return self.write(
            np.full(count, idx, dtype=np.intp),
            np.arange(page_index, page_index + count, dtype=np.int32),
            first_locs,
        )

    def runs_on(self, idx: int, num_pages: int) -> bool:
        """Whether the row's locs run on inside each page, from a multiple of page_size."""
        locs = self.locs[idx, : num_pages * self._page_size].reshape(-1, self._page_size)
        first_locs = locs[:, :1]
        return bool(
            (locs == first_locs + self._offsets).all() and not (first_locs % self._page_size).any()
        )
