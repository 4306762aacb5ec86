"""The page table: which loc holds each position of each row."""

from __future__ import annotations

from torch import Tensor


def scatter_page_table(page_table: Tensor, rows: Tensor, positions: Tensor, locs: Tensor) -> None:
    """Writes `page_table[rows[i], positions[i]] = locs[i]` for all i, in place.

    `page_table` is int32 [max_running_reqs + 1, width]; the other three are int32 [n]. No (row,
    position) may come twice: which of the two would win is undefined.
    """
    page_table[rows, positions] = locs


def read_page_table(page_table: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
    """The locs `page_table[rows[i], positions[i]]`, int64 [n]; of new tokens, their out_locs."""
    return page_table[rows, positions].long()
