from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from bench.gpu.linear_sweep import new_table
from kernels.gpu import linear_tuning
from kernels.gpu.linear_tuning import LinearConfig, linear_config, suits

ONE = LinearConfig(1, 1024, num_warps=4, num_stages=3)
FEW = LinearConfig(16, 256, num_warps=4, num_stages=4)
MANY = LinearConfig(32, 128, num_warps=4, num_stages=3)
WIDE = LinearConfig(8, 512, num_warps=8, num_stages=3)
BF16 = torch.bfloat16
SHAPE = {"num_rows": 4096, "num_columns": 1024}


def entry(config: LinearConfig, max_tokens: int, **changes: object) -> dict[str, Any]:
    rest = {**SHAPE, "gated": False, "max_tokens": max_tokens, "used": True}
    return {**rest, **asdict(config), **changes}


def table_of(directory: Path, **changes: object) -> Path:
    """A table for two shapes, and one gated; `changes` go to its entry for 4 tokens."""
    entries = [
        entry(ONE, 1),
        entry(FEW, 4, **changes),
        entry(MANY, 16, used=False),
        entry(WIDE, 16, num_rows=1024, num_columns=3072),
        entry(ONE, 1, gated=True),
        entry(WIDE, 16, gated=True),
    ]
    table = directory / "table.json"
    table.write_text(json.dumps(entries))
    return table


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("num_rows", "num_columns"), [(4096, 1024), (34816, 5120), (2, 1), (10**6, 10**5)]
)
def test_the_shipped_table_has_a_config_for_every_shape(
    num_rows: int, num_columns: int, gated: bool
) -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for num_tokens in range(1, 17):
            config = linear_config(num_tokens, num_rows, num_columns, dtype, gated=gated)
            assert config.tile_rows >= (1 if num_tokens == 1 else 8)
            rows = config.tile_rows * (2 if gated else 1) + (0 if num_tokens == 1 else 16)
            under_way = rows * config.tile_columns * config.num_stages * dtype.itemsize
            assert under_way < 227 * 1024, "what is under way fits the shared memory of Hopper"


def test_tokens_take_the_entry_that_was_measured_for_no_fewer(tmp_path: Path) -> None:
    table = table_of(tmp_path)

    chosen = [
        linear_config(t, 4096, 1024, BF16, gated=False, table=table) for t in (1, 2, 4, 5, 16)
    ]

    assert chosen == [ONE, FEW, FEW, MANY, MANY]


def test_a_shape_that_was_not_measured_takes_the_nearest(tmp_path: Path) -> None:
    table = table_of(tmp_path)

    def config(num_tokens: int, num_rows: int, num_columns: int, *, gated: bool) -> LinearConfig:
        return linear_config(num_tokens, num_rows, num_columns, BF16, gated=gated, table=table)

    assert config(4, 5000, 900, gated=False) == FEW
    assert config(4, 1000, 4000, gated=False) == WIDE
    assert config(1, 1000, 4000, gated=False) == ONE
    assert config(16, 9, 10**6, gated=True) == WIDE


def test_the_kernel_suits_few_tokens_where_cublas_was_not_faster(tmp_path: Path) -> None:
    table = table_of(tmp_path)

    def suited(num_tokens: int, dtype: torch.dtype = BF16) -> bool:
        return suits(num_tokens, 4096, 1024, dtype, gated=False, table=table)

    assert [suited(t) for t in (0, 1, 4, 5, 16, 17)] == [False, True, True, False, False, False]
    assert suited(1, torch.float16)
    assert not suited(1, torch.float32)
    assert not suits(1, 4096, 1023, BF16, gated=False, table=table)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tile_columns": 96}, "no power of two"),
        ({"num_stages": 0}, "num_stages is 0"),
        ({"used": "yes"}, "used is 'yes'"),
        ({"gated": None}, "gated is None"),
        ({"wraps": 4}, "wraps"),
        ({"num_rows": "4096"}, "num_rows is '4096'"),
        ({"tile_rows": 4}, "no tile"),
        ({"tile_columns": 32}, "no tile"),
    ],
)
def test_a_damaged_entry_is_refused_in_one_sentence_that_names_the_file(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    table = table_of(tmp_path, **changes)

    with pytest.raises(ValueError, match=words) as refusal:
        linear_tuning.load(table)

    assert str(table) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["", "{}", "[", "[1]", "[]", json.dumps([entry(ONE, 1)])])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    table = tmp_path / "table.json"
    table.write_text(text)

    with pytest.raises(ValueError, match="cannot be used"):
        linear_tuning.load(table)
    with pytest.raises(ValueError, match="cannot be used"):
        linear_tuning.load(tmp_path / "absent.json")


def test_the_sweep_s_winners_make_a_table_that_loads(tmp_path: Path) -> None:
    def figure(config: LinearConfig, num_tokens: int, us: float, cublas_us: float) -> Any:
        case = {**SHAPE, "gated": False, "num_tokens": num_tokens, "cublas_us": cublas_us}
        return {**case, "us": us, "config": asdict(config)}

    figures = [
        figure(ONE, 1, 4.0, 5.0),
        figure(MANY, 2, 9.0, 5.0),
        figure(FEW, 2, 4.5, 5.0),
        figure(WIDE, 8, 6.0, 5.5),
    ]

    table = tmp_path / "table.json"
    table.write_text(json.dumps(new_table(figures)))

    def found(num_tokens: int, num_rows: int = 4096) -> tuple[LinearConfig, bool]:
        shape = num_tokens, num_rows, 1024, BF16
        return (
            linear_config(*shape, gated=False, table=table),
            suits(*shape, gated=False, table=table),
        )

    assert found(1) == (ONE, True)
    assert found(2) == (FEW, True)
    assert found(8) == (WIDE, False)
    as_it_was = linear_config(1, 151_936, 5120, BF16, gated=False)
    assert found(1, 10**9)[0] == linear_config(1, 10**9, 1024, BF16, gated=False)
    assert linear_config(1, 151_936, 5120, BF16, gated=False, table=table) == as_it_was
