"""The tokenizer's files in one archive, for a router that has no copy of the model."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from smg_grpc_proto.generated import common_pb2

PATTERNS = (
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template.*",
)
CHUNK_BYTES = 256 * 1024
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the same files make the same archive


def archive_of(model_dir: Path) -> bytes:
    """A zip of the files at its top."""
    paths = {path for pattern in PATTERNS for path in model_dir.glob(pattern) if path.is_file()}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        for path in sorted(paths):
            entry = zipfile.ZipInfo(path.name, LONG_AGO)
            opened.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return archive.getvalue()


def chunks_of(archive: bytes) -> Iterator[common_pb2.GetTokenizerChunk]:
    """Its parts in order; the last one has the fingerprint of all."""
    for start in range(0, len(archive), CHUNK_BYTES):
        end = start + CHUNK_BYTES
        fingerprint = "" if end < len(archive) else hashlib.sha256(archive).hexdigest()
        yield common_pb2.GetTokenizerChunk(data=archive[start:end], sha256=fingerprint)
