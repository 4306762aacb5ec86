"""The digest of a page table: `Result.table_digest` of `runner.proto`, in numpy."""

from __future__ import annotations

import numpy as np

from servicekit.plan import Int32Array

_ROW, _POSITION, _LOC = (
    np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
)
_MIX, _HALF = np.uint64(0xD6E8FEB86659FD93), np.uint64(32)


def table_digest(page_table: Int32Array, rows: Int32Array, lengths: Int32Array) -> int:
    """The digest, 0 to 2**64 - 1, of positions `0 … lengths[i] - 1` of each row `rows[i]` of
    `page_table` [rows, width].

    A sum, so the order of `rows` does not matter, and rows of length 0 count for nothing. About
    20 ns an entry.
    """
    row_of = np.repeat(rows, lengths)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    positions = np.arange(len(row_of)) - np.repeat(starts, lengths)
    mixed = positions.astype(np.uint64) * _POSITION  # arrays of uint64 wrap, as the proto asks
    mixed += page_table[row_of, positions].astype(np.uint64) * _LOC
    mixed += row_of.astype(np.uint64) * _ROW
    mixed ^= mixed >> _HALF
    mixed *= _MIX
    return int(mixed.sum(dtype=np.uint64))
