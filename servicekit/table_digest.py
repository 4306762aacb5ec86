"""The digest of a page table: `Result.table_digest` of `runner.proto`, in numpy."""

from __future__ import annotations

import numpy as np

from servicekit.plan import Int32Array

_ROW, _POSITION, _LOC = (
    np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
)
_MIX, _HALF = 0xD6E8FEB86659FD93, np.uint64(32)
_TILE_POSITIONS = 256  # of all rows at once: what is worked on stays in the processor's cache


def table_digest(page_table: Int32Array, rows: Int32Array, lengths: Int32Array) -> int:
    """The digest, 0 to 2**64 - 1, of positions `0 … lengths[i] - 1` of each row `rows[i]` of
    `page_table` [rows, width].

    A sum, so the order of `rows` does not matter, and rows of length 0 count for nothing. About
    5 ns an entry.
    """
    longest, total = int(lengths.max(initial=0)), 0
    for start in range(0, longest, _TILE_POSITIONS):
        end = min(start + _TILE_POSITIONS, longest)
        reaching = lengths > start
        positions, tile_rows = np.arange(start, end), rows[reaching]
        mixed = page_table[tile_rows, start:end].astype(np.uint64)  # uint64 wraps, as it is to
        mixed *= _LOC
        mixed += positions.astype(np.uint64) * _POSITION
        mixed += (tile_rows.astype(np.uint64) * _ROW)[:, np.newaxis]
        mixed ^= mixed >> _HALF
        mixed *= positions < lengths[reaching, np.newaxis]
        total += int(mixed.sum())
    return total * _MIX % 2**64  # the sum of products is the product of the sum
