"""Rows that run, in the order of their requests' ranks."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator

import numpy as np

from cachesvc.rows import RowIndexes


class RunningRows:
    """table_idx of each, lowest rank first; as an array too, made anew only when they change."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._array: RowIndexes | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    @property
    def array(self) -> RowIndexes:
        if self._array is None:
            self._array = np.array(self._rows, dtype=np.intp)
        return self._array

    def add(self, idx: int, rank_of: Callable[[int], tuple[float, int]]) -> None:
        bisect.insort(self._rows, idx, key=rank_of)
        self._array = None

    def remove(self, idx: int) -> None:
        self._rows.remove(idx)
        self._array = None

    def pop_last(self) -> int:
        """Take out the row of last rank."""
        self._array = None
        return self._rows.pop()

    def clear(self) -> None:
        self._rows.clear()
        self._array = None
