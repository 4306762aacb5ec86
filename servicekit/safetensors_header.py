"""The header of a safetensors file: 8 bytes of length, then JSON that says where each tensor lies
behind it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from servicekit.errors import SetupError

MAX_HEADER_BYTES = 100_000_000  # the format's own bound


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    raw: bytes  # the JSON as it stands in the file
    tensor_names: frozenset[str]
    file_bytes: int


def read_header(path: Path) -> SafetensorsHeader:
    """Reads the header and checks the file's length against it; a SetupError names the file that is
    cut or broken.
    """
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if file_bytes < 8 or header_bytes > min(MAX_HEADER_BYTES, file_bytes - 8):
            raise SetupError(f"{path} is cut short or no safetensors file: its header is not whole")
        raw = file.read(header_bytes)
    try:
        entries = json.loads(raw)
        tensors = {name: entry for name, entry in entries.items() if name != "__metadata__"}
        end_of_tensors = max(
            (int(entry["data_offsets"][1]) for entry in tensors.values()), default=0
        )
    except (ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
        raise SetupError(
            f"{path} is no safetensors file: its header cannot be read ({error})"
        ) from error
    expected_bytes = 8 + header_bytes + end_of_tensors
    if file_bytes != expected_bytes:
        raise SetupError(
            f"{path} has {file_bytes} bytes where its header says {expected_bytes}: fetch it again"
        )
    return SafetensorsHeader(raw, frozenset(tensors), file_bytes)
