"""Integer arithmetic."""

from __future__ import annotations

import numpy as np

from servicekit.arith import align_up, ceil_div, table_width


def test_ceil_div_is_the_least_integer_that_is_large_enough() -> None:
    assert [ceil_div(value, 4) for value in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert ceil_div(np.array([0, 1, 4, 5], dtype=np.int32), 4).tolist() == [0, 1, 1, 2]


def test_align_up_gives_the_next_multiple() -> None:
    assert [align_up(value, 32) for value in (1, 32, 33)] == [32, 32, 64]


def test_a_row_of_the_page_table_is_whole_pages_and_at_least_a_multiple_of_32() -> None:
    assert [table_width(33, page_size) for page_size in (1, 16, 64)] == [64, 64, 64]
    assert table_width(64, 1) == 64
