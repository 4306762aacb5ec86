"""Which entry of a tuning table is taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.gpu.tuning_table import check_powers_of_two, smallest_fitting


@given(st.lists(st.integers(1, 512), min_size=1), st.integers(1, 512))
def test_the_smallest_that_fits_else_the_largest(counts: list[int], count: int) -> None:
    taken = smallest_fitting(counts, count, lambda entry: entry)
    assert taken == min((each for each in counts if each >= count), default=max(counts))


def test_what_is_no_power_of_two_is_named() -> None:
    check_powers_of_two({"tile_len": 64, "num_warps": 1})
    with pytest.raises(ValueError, match="num_warps is 3, which is no power of two"):
        check_powers_of_two({"tile_len": 64, "num_warps": 3})
