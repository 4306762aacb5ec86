"""What a model's configuration says about token ids: which ones end a generation, and how many
there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from servicekit.errors import SetupError
from servicekit.model_dir import CONFIG, GENERATION_CONFIG


def end_token_ids_of(
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    tokenizer_eos_id: int | None,
    model_dir: Path,
) -> frozenset[int]:
    """The union of what config.json, generation_config.json and the tokenizer call an end token."""
    of_tokenizer = frozenset() if tokenizer_eos_id is None else frozenset([tokenizer_eos_id])
    of_config = _eos_ids(config, model_dir / CONFIG)
    return of_tokenizer | of_config | _eos_ids(generation_config, model_dir / GENERATION_CONFIG)


def vocab_size_of(config: Mapping[str, Any], model_dir: Path) -> int:
    """The number of token ids that the model knows, which is the width of its logits."""
    vocab_size = config.get("vocab_size")
    if not _is_id(vocab_size) or vocab_size == 0:
        raise SetupError(f"{model_dir / CONFIG} has no usable vocab_size: {vocab_size!r}")
    return vocab_size


def _eos_ids(config: Mapping[str, Any], path: Path) -> frozenset[int]:
    """eos_token_id as an int, a list of them, null or absent."""
    value = config.get("eos_token_id")
    if value is None:
        return frozenset()
    ids = value if isinstance(value, list) else [value]
    if not all(_is_id(token_id) for token_id in ids):
        raise SetupError(f"eos_token_id in {path} is neither an id nor a list of ids: {value!r}")
    return frozenset(ids)


def _is_id(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
