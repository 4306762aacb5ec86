"""What a model directory says about itself, with tiny safetensors files made here."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest

from servicekit.errors import SetupError
from servicekit.model_dir import (
    NUM_WINDOWS,
    WINDOW_BYTES,
    fingerprint,
    model_name,
    read_config,
    read_generation_config,
    weight_files,
    window_offsets,
)

INDEX = "model.safetensors.index.json"


def safetensors(tensors: dict[str, bytes]) -> bytes:
    """The file format by hand: length of the header, the header, the tensors one after another."""
    header, end = {}, 0
    for name, content in tensors.items():
        offsets = [end, end := end + len(content)]
        header[name] = {"dtype": "U8", "shape": [len(content)], "data_offsets": offsets}
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + b"".join(tensors.values())


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A model of one file."""
    (tmp_path / "config.json").write_text('{"a": 1, "b": [2]}')
    (tmp_path / "model.safetensors").write_bytes(safetensors({"w": b"0123", "v": b"45"}))
    return tmp_path


@pytest.fixture
def sharded_dir(tmp_path: Path) -> Path:
    """A model of three shards and their index."""
    (tmp_path / "config.json").write_text("{}")
    for idx in (1, 2, 3):
        (tmp_path / f"s{idx}.safetensors").write_bytes(safetensors({f"w{idx}": b"x" * 2000}))
    weight_map = {f"w{idx}": f"s{idx}.safetensors" for idx in (1, 2, 3)}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return tmp_path


def test_the_fingerprint_is_the_same_for_the_same_model_elsewhere(
    model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "config.json").write_text('{ "b": [2],\n "a": 1 }')
    (other / "model.safetensors").write_bytes((model_dir / "model.safetensors").read_bytes())
    (other / "README.md").write_text("not part of the model")
    assert fingerprint(other) == fingerprint(model_dir)
    assert len(fingerprint(model_dir)) == 64


def test_the_fingerprint_changes_with_anything_it_reads(model_dir: Path) -> None:
    weights = model_dir / "model.safetensors"
    seen = {fingerprint(model_dir)}
    (model_dir / "config.json").write_text('{"a": 2, "b": [2]}')
    seen.add(fingerprint(model_dir))
    weights.write_bytes(safetensors({"w": b"0123", "v": b"46"}))
    seen.add(fingerprint(model_dir))
    weights.write_bytes(safetensors({"w": b"0123", "u": b"46"}))
    seen.add(fingerprint(model_dir))
    weights.rename(model_dir / "other.safetensors")
    seen.add(fingerprint(model_dir))
    (model_dir / "second.safetensors").write_bytes(safetensors({}))
    seen.add(fingerprint(model_dir))
    assert len(seen) == 6


def test_the_windows_reach_from_the_first_byte_to_the_last() -> None:
    file_bytes = 540_000_000
    offsets = window_offsets(file_bytes)
    assert len(offsets) == NUM_WINDOWS
    assert (offsets[0], offsets[-1] + WINDOW_BYTES) == (0, file_bytes)
    gaps = {after - before for before, after in pairwise(offsets)}
    assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("file_bytes", [0, 10, WINDOW_BYTES, WINDOW_BYTES + 5, 63 * WINDOW_BYTES])
def test_the_windows_cover_a_small_file_whole(file_bytes: int) -> None:
    covered = 0
    for offset in window_offsets(file_bytes):
        assert offset <= covered
        covered = offset + WINDOW_BYTES
    assert covered >= file_bytes


def test_a_large_file_is_read_in_windows_only(model_dir: Path) -> None:
    """A gigabyte of holes: the fingerprint notices the last byte."""
    length_bytes = 1 << 30
    entry = {"dtype": "U8", "shape": [length_bytes], "data_offsets": [0, length_bytes]}
    raw = json.dumps({"w": entry}).encode()
    weights = model_dir / "model.safetensors"
    weights.write_bytes(len(raw).to_bytes(8, "little") + raw)
    os.truncate(weights, 8 + len(raw) + length_bytes)
    before = fingerprint(model_dir)
    with weights.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    assert fingerprint(model_dir) != before


def test_a_model_of_one_file_needs_no_index(model_dir: Path) -> None:
    assert weight_files(model_dir) == [model_dir / "model.safetensors"]


def test_shards_come_in_name_order(sharded_dir: Path) -> None:
    assert [path.name for path in weight_files(sharded_dir)] == [
        "s1.safetensors",
        "s2.safetensors",
        "s3.safetensors",
    ]


def test_case_9_6_a_missing_shard_is_named(sharded_dir: Path) -> None:
    """Shard 2 deleted (case 9.6)."""
    (sharded_dir / "s2.safetensors").unlink()
    with pytest.raises(SetupError, match=r"s2.safetensors is missing"):
        fingerprint(sharded_dir)


@pytest.mark.parametrize("kept_bytes", [0, 4, 20, -1000, -1])
def test_case_9_6_a_cut_shard_is_named(sharded_dir: Path, kept_bytes: int) -> None:
    """Cut by 1 kB, inside the header, to nothing (case 9.6)."""
    shard = sharded_dir / "s3.safetensors"
    shard.write_bytes(shard.read_bytes()[:kept_bytes])
    with pytest.raises(SetupError, match=r"s3.safetensors"):
        fingerprint(sharded_dir)


def test_case_9_6_a_tensor_that_its_shard_lacks_is_named(sharded_dir: Path) -> None:
    """The index names a tensor that its shard lacks (case 9.6)."""
    (sharded_dir / INDEX).write_text('{"weight_map": {"lost": "s1.safetensors"}}')
    with pytest.raises(SetupError, match=r"s1.safetensors lacks the tensor lost"):
        fingerprint(sharded_dir)


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"w": 3}', b'{"w": {"data_offsets": [0]}}'])
def test_a_header_that_is_none_is_a_setup_error(model_dir: Path, raw: bytes) -> None:
    (model_dir / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw)
    with pytest.raises(SetupError, match=r"model.safetensors"):
        weight_files(model_dir)


def test_a_directory_without_weights_is_refused(model_dir: Path) -> None:
    (model_dir / "model.safetensors").unlink()
    with pytest.raises(SetupError, match=r"has no .*safetensors"):
        fingerprint(model_dir)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="nowhere does not exist"):
        read_config(tmp_path / "nowhere")


@pytest.mark.parametrize("content", ["", "{", "[]", "3"])
def test_a_configuration_that_is_no_json_object_is_named(model_dir: Path, content: str) -> None:
    (model_dir / "config.json").write_text(content)
    with pytest.raises(SetupError, match=r"config.json"):
        read_config(model_dir)


def test_the_generation_config_may_be_missing(model_dir: Path) -> None:
    assert read_generation_config(model_dir) == {}
    (model_dir / "generation_config.json").write_text('{"eos_token_id": 2}')
    assert read_generation_config(model_dir) == {"eos_token_id": 2}


def test_a_model_is_called_like_its_directory_or_its_hub_name(tmp_path: Path) -> None:
    assert model_name(tmp_path / "tiny-model") == "tiny-model"
    snapshot = tmp_path / "models--org--some-model" / "snapshots" / "abc"
    assert model_name(snapshot) == "org/some-model"
