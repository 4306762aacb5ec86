from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from bench.gpu.attention_table import new_table
from kernels.gpu import attention_tuning
from kernels.gpu.attention_tuning import DecodeConfig, PrefillConfig, decode_config, prefill_config

SMALL = DecodeConfig(32, 4, 3, workers_per_sm=2)
LARGE = DecodeConfig(64, 4, 3, workers_per_sm=3)
PROMPT = PrefillConfig(128, 64, 8, 3)


def table_of(directory: Path, **changes: object) -> Path:
    """A table for head_dim 128, group 4, with two batches; `changes` go to its first entry."""
    shape = {"head_dim": 128, "group": 4}
    decode = [
        {**shape, "max_reqs": 8, **asdict(SMALL), **changes},
        {**shape, "max_reqs": 64, **asdict(LARGE)},
    ]
    table = directory / "table.json"
    table.write_text(json.dumps({"decode": decode, "prefill": [{**shape, **asdict(PROMPT)}]}))
    return table


@pytest.mark.parametrize("head_dim", attention_tuning.HEAD_DIMS)
@pytest.mark.parametrize("group", [1, 2, 3, 5, 7, 8, 16])
def test_the_shipped_table_has_a_config_for_every_supported_shape(
    head_dim: int, group: int
) -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        padded = 1 << (head_dim - 1).bit_length()
        for num_reqs in (1, 7, 256, 5000):
            config = decode_config(head_dim, group, num_reqs, dtype)
            in_flight = 2 * (config.num_stages - 1) * config.tile_len * padded * dtype.itemsize
            assert in_flight < 227 * 1024, "K and V in flight fit the shared memory of Hopper"
        assert prefill_config(head_dim, group, dtype).tile_rows >= 16


def test_a_batch_takes_the_entry_that_was_measured_for_no_fewer_rows(tmp_path: Path) -> None:
    table = table_of(tmp_path)

    chosen = [decode_config(128, 4, n, torch.bfloat16, table=table) for n in (1, 8, 9, 64, 500)]

    assert chosen == [SMALL, SMALL, LARGE, LARGE, LARGE]


def test_a_shape_that_was_not_measured_takes_the_nearest(tmp_path: Path) -> None:
    table = table_of(tmp_path)

    assert decode_config(80, 3, 4, torch.float16, table=table) == SMALL
    assert prefill_config(96, 8, torch.bfloat16, table=table) == PROMPT


@pytest.mark.parametrize(
    ("head_dim", "dtype", "words"),
    [(72, torch.bfloat16, "head_dim 72 has no GPU kernel"), (64, torch.float64, "torch.float64")],
)
def test_what_has_no_kernel_is_refused_by_name(
    head_dim: int, dtype: torch.dtype, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        decode_config(head_dim, 4, 1, dtype)
    with pytest.raises(ValueError, match=words):
        prefill_config(head_dim, 4, dtype)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tile_len": 48}, "no power of two"),
        ({"num_stages": 0}, "num_stages is 0"),
        ({"page_tiles": "yes"}, "page_tiles is 'yes'"),
        ({"wraps": 4}, "wraps"),
        ({"group": None}, "its shape is 128, None, 8"),
    ],
)
def test_a_damaged_entry_is_refused_in_one_sentence_that_names_the_file(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    table = table_of(tmp_path, **changes)

    with pytest.raises(ValueError, match=words) as refusal:
        attention_tuning.load(table)

    assert str(table) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"decode": []}', '{"decode": [], "prefill": []}'])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    table = tmp_path / "table.json"
    table.write_text(text)

    with pytest.raises(ValueError, match="cannot be used"):
        attention_tuning.load(table)
    with pytest.raises(ValueError, match="cannot be used"):
        attention_tuning.load(tmp_path / "absent.json")


def test_the_sweep_s_winners_make_a_table_that_loads(tmp_path: Path) -> None:
    shape = {"head_dim": 128, "num_heads": 32, "num_kv_heads": 8}
    decode = [
        {**shape, "load": load, "num_reqs": num_reqs, "us": us, "read_us": 10.0, "config": config}
        for load, num_reqs, us, config in (
            ("1x1024", 1, 12.0, asdict(SMALL)),
            ("1x8192", 1, 19.0, asdict(SMALL)),
            ("1x1024", 1, 13.0, asdict(LARGE)),
            ("1x8192", 1, 15.0, asdict(LARGE)),
            ("64x1024", 64, 11.0, asdict(SMALL)),
        )
    ]
    prefill = [{**shape, "load": "1x8192", "num_reqs": 1, "us": 9.0, "config": asdict(PROMPT)}]

    table = tmp_path / "table.json"
    table.write_text(json.dumps(new_table({"decode": decode, "prefill": prefill})))

    assert decode_config(128, 4, 1, torch.bfloat16, table=table) == LARGE
    assert decode_config(128, 4, 64, torch.bfloat16, table=table) == SMALL
    assert prefill_config(128, 4, torch.bfloat16, table=table) == PROMPT
    as_it_was = decode_config(256, 2, 1, torch.bfloat16)
    assert decode_config(256, 2, 1, torch.bfloat16, table=table) == as_it_was
