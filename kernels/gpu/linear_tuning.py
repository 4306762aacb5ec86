"""Which tiles, warps and stages the products of few tokens are compiled with, and where they are
faster than cuBLAS: a table, measured once.

Nothing is tuned while serving: `bench/gpu/linear_sweep.py` measures on a card, and its winners are
the entries of `tuned_linear.json`. A shape that was not measured takes the entry of the nearest
one, so every shape runs.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import torch

from kernels.gpu.tuning_table import check_powers_of_two, smallest_fitting, usable

MAX_TOKENS = 16
TABLE = Path(__file__).with_name("tuned_linear.json")
_ALIGNED = 16  # columns: what Triton must know of a stride to read 16 bytes at a time
_KINDS = {(gated, single) for gated in (False, True) for single in (False, True)}
_DOT_ROWS, _DOT_COLUMNS = 8, 16  # the least that `tl.dot` takes, of each warp


@dataclass(frozen=True, slots=True)
class LinearConfig:
    """How a program works."""

    tile_rows: int  # rows of the weight that a program has; where gated as many of the up rows
    tile_columns: int  # read at once; of more than one token each warp has an equal part
    num_warps: int
    num_stages: int  # how many tiles there is room for: all but one are under way


@dataclass(frozen=True, slots=True)
class Tuned:
    """One entry: the shape that was measured, and the config that won it.

    The weight is [num_rows, num_columns], gate and up rows together where `gated`. `max_tokens` is
    the largest batch that it is for; 1 is a kernel of its own. Not `used`: cuBLAS was faster.
    """

    num_rows: int
    num_columns: int
    gated: bool
    max_tokens: int
    used: bool
    config: LinearConfig


def suits(
    num_tokens: int,
    num_rows: int,
    num_columns: int,
    dtype: torch.dtype,
    *,
    gated: bool,
    table: Path = TABLE,
) -> bool:
    """Whether `skinny_linear` is to be used: on a GPU, faster than cuBLAS at the nearest shape that
    was measured. Never for float32, which it does exactly rather than fast, nor for rows of the
    weight that are not aligned.
    """
    narrow = dtype in (torch.float16, torch.bfloat16)
    if not narrow or not 0 < num_tokens <= MAX_TOKENS or num_columns % _ALIGNED:
        return False
    return _nearest(num_tokens, num_rows, num_columns, table, gated=gated).used


def linear_config(
    num_tokens: int,
    num_rows: int,
    num_columns: int,
    dtype: torch.dtype,
    *,
    gated: bool,
    table: Path = TABLE,
) -> LinearConfig:
    """The config for `num_tokens` times a weight [num_rows, num_columns]."""
    if dtype == torch.float32:  # exact rather than fast: no entry is for it
        return LinearConfig(tile_rows=8, tile_columns=128, num_warps=4, num_stages=2)
    return _nearest(num_tokens, num_rows, num_columns, table, gated=gated).config


@cache
def load(table: Path = TABLE) -> tuple[Tuned, ...]:
    """The entries of a table.

    Errors: ValueError, one sentence that names the file, when it is not what the sweep writes.
    """
    with usable(table, "bench/gpu/linear_sweep.py"):
        entries = [_parse(entry) for entry in json.loads(table.read_text(encoding="utf-8"))]
        missing = _KINDS - {(entry.gated, entry.max_tokens == 1) for entry in entries}
        if missing:
            raise ValueError("it lacks entries, gated or not, for one token or for more")
    return tuple(entries)


def _parse(entry: dict[str, Any]) -> Tuned:
    rest = dict(entry)
    shape = {name: rest.pop(name) for name in ("num_rows", "num_columns", "max_tokens")}
    gated, used = rest.pop("gated"), rest.pop("used")
    config = LinearConfig(**rest)
    numbers = shape | {field.name: getattr(config, field.name) for field in fields(config)}
    for name, number in numbers.items():
        if type(number) is not int or number < 1:
            raise ValueError(f"{name} is {number!r}")
    names = ("tile_rows", "tile_columns", "num_warps")
    check_powers_of_two({name: numbers[name] for name in names})
    for name, flag in (("gated", gated), ("used", used)):
        if type(flag) is not bool:
            raise ValueError(f"{name} is {flag!r}")
    if shape["max_tokens"] > 1 and (
        config.tile_rows < _DOT_ROWS or config.tile_columns < _DOT_COLUMNS * config.num_warps
    ):
        raise ValueError(f"more than one token has no tile of {config}")
    return Tuned(**shape, gated=gated, used=used, config=config)


@cache
def _nearest(
    num_tokens: int, num_rows: int, num_columns: int, table: Path, *, gated: bool
) -> Tuned:
    """The entry of the nearest shape, for no fewer tokens where there is one."""
    kind = gated, num_tokens == 1
    entries = [entry for entry in load(table) if (entry.gated, entry.max_tokens == 1) == kind]

    def distance(entry: Tuned) -> float:
        rows, columns = entry.num_rows / num_rows, entry.num_columns / num_columns
        return abs(math.log(rows)) + abs(math.log(columns))

    nearest = min(map(distance, entries))
    near = [entry for entry in entries if distance(entry) == nearest]
    return smallest_fitting(near, num_tokens, lambda entry: entry.max_tokens)
