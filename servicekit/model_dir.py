"""What a model directory holds, read without torch: its JSON files, its weight files, its
fingerprint, its name.

A failure is a SetupError that names the file.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from servicekit.errors import SetupError
from servicekit.safetensors_header import read_header

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHT_INDEX = "model.safetensors.index.json"

LOAD_FORMATS = ("safetensors", "dummy")  # dummy: random weights in the shapes of config.json
WINDOW_BYTES = 64 * 1024
NUM_WINDOWS = 64


def read_config(model_dir: Path) -> dict[str, Any]:
    """config.json of the directory; SetupError when the directory or the file is missing, or it is
    no JSON object.
    """
    if not model_dir.is_dir():
        raise SetupError(f"the model directory {model_dir} does not exist")
    path = model_dir / CONFIG
    if not path.is_file():
        raise SetupError(f"the model directory {model_dir} has no {CONFIG}")
    return read_json_object(path)


def read_generation_config(model_dir: Path) -> dict[str, Any]:
    """generation_config.json of the directory; an empty dict when there is none, as the file is
    optional.
    """
    path = model_dir / GENERATION_CONFIG
    return read_json_object(path) if path.is_file() else {}


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; SetupError naming the file when it cannot be read or is something
    else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise SetupError(f"{path} holds no JSON object")
    return value


def weight_files(model_dir: Path) -> list[Path]:
    """The *.safetensors of the directory, sorted by name, each of them whole.

    Checked from the headers alone, in milliseconds: there is one, none is truncated, every shard
    that the index names is there and holds the tensors that the index says it does.
    """
    paths = sorted(model_dir.glob("*.safetensors"))
    tensors_of = {path.name: read_header(path).tensor_names for path in paths}
    index = model_dir / WEIGHT_INDEX
    if index.is_file():
        _check_index(index, tensors_of)
    if not paths:
        raise SetupError(f"the model directory {model_dir} has no *.safetensors file")
    return paths


def _check_index(index: Path, tensors_of: dict[str, frozenset[str]]) -> None:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise SetupError(f"{index} has no weight_map")
    for tensor, shard in weight_map.items():
        if shard not in tensors_of:
            raise SetupError(
                f"{index.parent / str(shard)} is missing, though {index.name} names it"
            )
        if tensor not in tensors_of[shard]:
            raise SetupError(
                f"{index.parent / shard} lacks the tensor {tensor} that {index.name} says it holds"
            )


def fingerprint(model_dir: Path, load_format: str = LOAD_FORMATS[0]) -> str:
    """A hex sha256 by which two processes know that they serve the same model.

    Taken over config.json (keys sorted) and, for each weight file in name order: its name, its
    length, its JSON header, and 64 windows of 64 KiB evenly spaced over the file. A sample, not a
    full digest: it tells models, versions and conversions apart, but a change of a few bytes
    between two windows of a large file goes unseen. Checks the weight files as `weight_files` does.
    With dummy weights, over config.json alone.
    """
    digest = hashlib.sha256()
    _feed(
        digest, json.dumps(read_config(model_dir), sort_keys=True, separators=(",", ":")).encode()
    )
    for path in weight_files(model_dir) if load_format != "dummy" else ():
        header = read_header(path)
        _feed(digest, path.name.encode())
        _feed(digest, str(header.file_bytes).encode())
        _feed(digest, header.raw)
        with path.open("rb") as file:
            for offset in window_offsets(header.file_bytes):
                file.seek(offset)
                _feed(digest, file.read(WINDOW_BYTES))
    return digest.hexdigest()


def window_offsets(file_bytes: int) -> list[int]:
    """Where the windows start: the first at 0, the last ends the file; a small file is covered."""
    span = max(0, file_bytes - WINDOW_BYTES)
    return sorted({span * idx // (NUM_WINDOWS - 1) for idx in range(NUM_WINDOWS)})


def check_load_format(load_format: str) -> None:
    """Errors: SetupError."""
    if load_format not in LOAD_FORMATS:
        raise SetupError(
            f"--load-format is {load_format}; it must be one of {', '.join(LOAD_FORMATS)}"
        )


def _feed(digest: hashlib._Hash, piece: bytes) -> None:
    """Adds a piece and first its length, so that no two lists of pieces feed the same bytes."""
    digest.update(len(piece).to_bytes(8, "little"))
    digest.update(piece)


def model_name(model_dir: Path) -> str:
    """What the model is called: `org/name` for a snapshot in the hub's cache, else the directory's
    own name.
    """
    resolved = model_dir.resolve()
    if resolved.parent.name == "snapshots" and resolved.parents[1].name.startswith("models--"):
        return resolved.parents[1].name.removeprefix("models--").replace("--", "/")
    return resolved.name
