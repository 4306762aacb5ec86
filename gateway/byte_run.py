"""A run of byte tokens, <0x00> to <0xFF>, as SentencePiece models write characters that they have
no token for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tokenizers


def byte_values(backend: tokenizers.Tokenizer) -> dict[int, int]:
    """The byte that each byte token stands for; empty for a tokenizer whose decoder has no
    ByteFallback.
    """
    if not has_decoder(backend, "ByteFallback"):
        return {}
    names = {f"<0x{value:{digits}}>": value for value in range(256) for digits in ("02X", "02x")}
    found = {backend.token_to_id(name): value for name, value in names.items()}
    return {token_id: value for token_id, value in found.items() if token_id is not None}


def has_decoder(backend: tokenizers.Tokenizer, kind: str) -> bool:
    """Whether one of `kind`, as tokenizer.json calls it, has a part in decoding."""
    decoder = backend.decoder
    return decoder is not None and _has(json.loads(decoder.__getstate__()), kind)


def _has(decoder: Mapping[str, Any], kind: str) -> bool:
    parts = decoder.get("decoders", [])
    return decoder.get("type") == kind or any(_has(part, kind) for part in parts)


def char_of_each_byte(run: bytes) -> list[int]:
    """Which character of the run's text each byte belongs to.

    The library decodes a run as a whole: to its text when it is valid UTF-8, else to one U+FFFD for
    each byte.
    """
    try:
        run.decode()
    except UnicodeDecodeError:
        return list(range(len(run)))
    char_idx = -1
    chars = []
    for value in run:
        char_idx += value & 0xC0 != 0x80  # a byte that continues no character starts one
        chars.append(char_idx)
    return chars
