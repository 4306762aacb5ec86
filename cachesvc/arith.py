"""Integer arithmetic by its name, for numbers and for arrays alike."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

N = TypeVar("N", int, NDArray[np.int32])


def ceil_div(value: N, divisor: int) -> N:
    """The smallest integer that is at least value / divisor."""
    return -(-value // divisor)


def align_up(value: int, multiple: int) -> int:
    return ceil_div(value, multiple) * multiple
