"""What tables of tuned configs have in common: how one is refused, and which entry is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

Entry = TypeVar("Entry")


@contextmanager
def usable(table: Path, sweep: str) -> Iterator[None]:
    """Around the reading of `table`, which the script `sweep` makes.

    Errors: ValueError, one sentence that names both, when the file is not what the sweep writes.
    """
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"the tuning table {table} cannot be used ({error!r}); remake it with {sweep}, or "
            "install the package again"
        ) from error


def check_powers_of_two(numbers: Mapping[str, int]) -> None:
    """Errors: ValueError for the first that is none."""
    for name, number in numbers.items():
        if number & (number - 1):
            raise ValueError(f"{name} is {number}, which is no power of two")


def smallest_fitting(
    entries: Sequence[Entry], count: int, most_of: Callable[[Entry], int]
) -> Entry:
    """The smallest of at least `count`, else the largest."""
    fitting = [entry for entry in entries if most_of(entry) >= count]
    return min(fitting, key=most_of) if fitting else max(entries, key=most_of)
