"""The text of single ids, as in the middle of a text."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.token_texts import TokenTexts
from gateway.tokenizer import Tokenizer
from tests.gateway.tiny_tokenizers import (
    BACKENDS,
    CHINESE,
    EMOJI,
    ENGLISH,
    KOREAN,
    THAI,
    load_tiny,
)


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


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("text", [KOREAN, THAI, EMOJI, CHINESE, ENGLISH, "x\ufffdx \u00a0é"])
def test_bytes_of_ids_joined_are_those_of_the_text(tmp_path: Path, kind: str, text: str) -> None:
    """Those of a part of a character were null over HTTP, and so was a real U+FFFD: but the field
    is there to put such parts together.
    """
    tokenizer = load_tiny(tmp_path, kind)
    texts = TokenTexts(tokenizer)
    ids = tokenizer.encode(text)
    assert b"".join(map(texts.bytes_of, ids)).decode().removeprefix(" ") == text
    (end_id,) = tokenizer.end_token_ids
    assert texts.bytes_of(end_id) == b"</s>"


def test_a_token_that_begins_with_a_part_of_a_character_has_all_its_bytes(tmp_path: Path) -> None:
    tokenizer = load_tiny(tmp_path, "byte_level")
    texts = TokenTexts(tokenizer)
    ids = range(tokenizer.backend.get_vocab_size())
    mixed = [one for one in ids if len(texts[one]) > 1 and "\ufffd" in texts[one]]
    assert mixed
    for token_id in mixed:
        assert texts.bytes_of(token_id).decode(errors="replace") == texts[token_id]


def test_unknown_ids_have_no_bytes(tmp_path: Path) -> None:
    tokenizer = load_tiny(tmp_path, "byte_level")
    assert TokenTexts(tokenizer).bytes_of(tokenizer.vocab_size - 1) == b""


@pytest.mark.parametrize("kind", BACKENDS)
def test_every_id_of_the_vocabulary_has_a_text(tmp_path: Path, kind: str) -> None:
    tokenizer: Tokenizer = load_tiny(tmp_path, kind)
    texts = TokenTexts(tokenizer)
    assert all(isinstance(texts[token_id], str) for token_id in range(tokenizer.vocab_size))
