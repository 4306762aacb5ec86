"""Integer arithmetic by its name, for numbers and for arrays alike."""

from __future__ import annotations

from typing import overload

from servicekit.plan import Int32Array


@overload
def ceil_div(value: int, divisor: int) -> int: ...
@overload
def ceil_div(value: Int32Array, divisor: int) -> Int32Array: ...
def ceil_div(value: int | Int32Array, divisor: int) -> int | Int32Array:
    """The smallest integer that is at least value / divisor."""
    return -(-value // divisor)


def align_up(value: int, multiple: int) -> int:
    return ceil_div(value, multiple) * multiple
