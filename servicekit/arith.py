"""Integer arithmetic by its name, for numbers and for arrays alike."""

from __future__ import annotations

from typing import overload

import numpy as np
from numpy.typing import NDArray


@overload
def ceil_div(value: int, divisor: int) -> int: ...
@overload
def ceil_div(value: NDArray[np.int32], divisor: int) -> NDArray[np.int32]: ...
def ceil_div(value: int | NDArray[np.int32], divisor: int) -> int | NDArray[np.int32]:
    """The smallest integer that is at least value / divisor."""
    return -(-value // divisor)


def align_up(value: int, multiple: int) -> int:
    return ceil_div(value, multiple) * multiple


def table_width(max_seq_len: int, page_size: int) -> int:
    """Positions of a row of the page table, at the manager and on the device alike."""
    return align_up(max_seq_len, max(32, page_size))
