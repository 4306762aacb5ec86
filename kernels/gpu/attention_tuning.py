"""Which tiles, warps and stages the attention kernels are compiled with: a table, measured once.

Nothing is tuned while serving: `bench/gpu/attention_sweep.py` measures on a card, and its winners
are the entries of `tuned_attention.json`. A shape that was not measured takes the entry of the
nearest one, so every supported shape runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import torch

from kernels.gpu.tuning_table import check_powers_of_two, smallest_fitting, usable

HEAD_DIMS = (64, 80, 96, 128, 256)
TABLE = Path(__file__).with_name("tuned_attention.json")


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How decode attention runs. The number of workers follows from the card's multiprocessors."""

    tile_len: int  # positions read at once, a power of two
    num_warps: int
    num_stages: int
    workers_per_sm: int  # programs started for every multiprocessor, over all KV heads
    page_tiles: bool = False  # where a tile lies in one page, read its first loc only
    fused_combine: bool = False  # the last worker of a row combines; else a second kernel does
    early_tile: bool = False  # a worker reads its first tile before the kernel in front has ended


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """How prefill attention runs."""

    tile_rows: int  # rows of Q at once: new tokens times the query heads of a KV head
    tile_len: int  # positions read at once, a power of two
    num_warps: int
    num_stages: int
    page_tiles: bool = False  # as in decode


@dataclass(frozen=True, slots=True)
class Tuned:
    """One entry: the shape that was measured, and the config that won it.

    `max_reqs` is the largest decode batch that it is for; prefill has one entry a shape, with 0.
    """

    head_dim: int
    group: int
    max_reqs: int
    config: DecodeConfig | PrefillConfig


def decode_config(
    head_dim: int, group: int, num_reqs: int, dtype: torch.dtype, *, table: Path = TABLE
) -> DecodeConfig:
    """The config of decode attention for `group` query heads a KV head and `num_reqs` rows."""
    _check_supported(head_dim, dtype)
    if dtype == torch.float32:  # exact rather than fast: no entry is for it
        return DecodeConfig(tile_len=32, num_warps=4, num_stages=2, workers_per_sm=4)
    entries = [entry for entry in load(table) if isinstance(entry.config, DecodeConfig)]
    near = _of_nearest_shape(entries, head_dim, group)
    chosen = smallest_fitting(near, num_reqs, lambda entry: entry.max_reqs)
    assert isinstance(chosen.config, DecodeConfig)
    return chosen.config


def prefill_config(
    head_dim: int, group: int, dtype: torch.dtype, *, table: Path = TABLE
) -> PrefillConfig:
    """The config of prefill attention for `group` query heads a KV head."""
    _check_supported(head_dim, dtype)
    if dtype == torch.float32:
        return PrefillConfig(tile_rows=16, tile_len=32, num_warps=8, num_stages=1)
    entries = [entry for entry in load(table) if isinstance(entry.config, PrefillConfig)]
    config = _of_nearest_shape(entries, head_dim, group)[0].config
    assert isinstance(config, PrefillConfig)
    return config


@cache
def load(table: Path = TABLE) -> tuple[Tuned, ...]:
    """The entries of a table.

    Errors: ValueError, one sentence that names the file, when it is not what the sweep writes.
    """
    with usable(table, "bench/gpu/attention_sweep.py"):
        content = json.loads(table.read_text(encoding="utf-8"))
        entries = [_parse(entry, DecodeConfig) for entry in content["decode"]]
        decodes = len(entries)
        entries += [_parse(entry, PrefillConfig) for entry in content["prefill"]]
        if not 0 < decodes < len(entries):
            raise ValueError("it has no entry for decode, or none for prefill")
    return tuple(entries)


def _parse(entry: dict[str, Any], kind: type[DecodeConfig] | type[PrefillConfig]) -> Tuned:
    rest = dict(entry)
    head_dim, group, max_reqs = rest.pop("head_dim"), rest.pop("group"), rest.pop("max_reqs", 0)
    config = kind(**rest)
    for field in fields(config):
        value = getattr(config, field.name)
        expected = bool if isinstance(field.default, bool) else int
        if type(value) is not expected or (expected is int and value < 1):
            raise ValueError(f"{field.name} is {value!r}")
    names = ("tile_len", "tile_rows", "num_warps")
    check_powers_of_two({name: getattr(config, name, 1) for name in names})
    if any(type(number) is not int for number in (head_dim, group, max_reqs)):
        raise ValueError(f"its shape is {head_dim!r}, {group!r}, {max_reqs!r}")
    return Tuned(head_dim, group, max_reqs, config)


def _check_supported(head_dim: int, dtype: torch.dtype) -> None:
    if head_dim not in HEAD_DIMS:
        known = ", ".join(map(str, HEAD_DIMS))
        raise ValueError(f"head_dim {head_dim} has no GPU kernel: it must be one of {known}")
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"{dtype} has no GPU kernel: it must be bfloat16, float16 or float32")


def _of_nearest_shape(entries: list[Tuned], head_dim: int, group: int) -> list[Tuned]:
    """The entries of the next head_dim upwards, and of these of the nearest group."""

    def distance(entry: Tuned) -> tuple[bool, int, int]:
        return (
            entry.head_dim < head_dim,  # its tiles may not fit
            abs(entry.head_dim - head_dim),
            abs(entry.group - group),
        )

    nearest = min(map(distance, entries))
    return [entry for entry in entries if distance(entry) == nearest]
