"""The text of single ids, as in the middle of a text."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.token_texts import TokenTexts
from gateway.tokenizer import Tokenizer
from tests.gateway.tiny_tokenizers import BACKENDS, load_tiny


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_words_keep_their_space_and_special_tokens_are_shown(tmp_path: Path, kind: str) -> None:
    tokenizer = load_tiny(tmp_path, kind)
    texts = TokenTexts(tokenizer)
    ids = tokenizer.encode("a fox")
    for _ in range(2):  # made, remembered
        assert "".join(texts[token_id] for token_id in ids).endswith("a fox")
    (end_id,) = tokenizer.end_token_ids
    assert texts[end_id] == "</s>"


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_a_part_of_a_character_is_said_to_be_one(tmp_path: Path, kind: str) -> None:
    tokenizer = load_tiny(tmp_path, kind)
    assert TokenTexts(tokenizer)[tokenizer.encode("👍")[-1]] == "\ufffd"


@pytest.mark.parametrize("kind", BACKENDS)
def test_every_id_of_the_vocabulary_has_a_text(tmp_path: Path, kind: str) -> None:
    tokenizer: Tokenizer = load_tiny(tmp_path, kind)
    texts = TokenTexts(tokenizer)
    assert all(isinstance(texts[token_id], str) for token_id in range(tokenizer.vocab_size))
