"""The text of each id, against the decode of all of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.pieces import Pieces
from gateway.tokenizer import Tokenizer
from tests.gateway.tiny_tokenizers import BACKENDS, CHINESE, EMOJI, KOREAN, load_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    return {kind: load_tiny(tmp_path_factory.mktemp(kind), kind) for kind in BACKENDS}


def pieces_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    pieces = Pieces(tokenizer)
    pieces.push(ids)
    return pieces.finish()


def test_each_id_has_its_text_and_special_tokens_have_theirs(tiny: dict[str, Tokenizer]) -> None:
    tokenizer = tiny["byte_level"]
    ids = tokenizer.encode("<s>a fox<|end|>")
    assert pieces_of(tokenizer, ids) == ["<s>", "a", " ", "fo", "x", "<|end|>"]


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_a_character_of_several_ids_stands_with_the_first_of_them(
    tiny: dict[str, Tokenizer], kind: str
) -> None:
    tokenizer = tiny[kind]
    ids = tokenizer.encode("x👍x")
    assert pieces_of(tokenizer, ids)[-5:] == ["👍", "", "", "", "x"]
    assert (
        pieces_of(tokenizer, ids[:-3])[-2:]
        == {
            "byte_level": ["\ufffd", ""],
            "byte_fallback": ["\ufffd", "\ufffd"],
        }[kind]
    )


def test_an_id_that_the_tokenizer_does_not_know_has_no_text(tiny: dict[str, Tokenizer]) -> None:
    tokenizer = tiny["byte_level"]
    assert pieces_of(tokenizer, [999, *tokenizer.encode("a"), 999]) == ["", "a", ""]


@pytest.mark.parametrize("kind", list(BACKENDS))
def test_joined_they_are_the_decode_of_all_however_they_came(
    tiny: dict[str, Tokenizer], kind: str
) -> None:
    tokenizer = tiny[kind]
    texts = [KOREAN, EMOJI, CHINESE, "Hello world  two"]
    some = [*tokenizer.special_ids, *(token for text in texts for token in tokenizer.encode(text))]
    token_ids = st.sampled_from(some) | st.integers(0, tokenizer.backend.get_vocab_size())

    @settings(max_examples=200, deadline=None)
    @given(bursts=st.lists(st.lists(token_ids, max_size=6), max_size=8))
    def check(bursts: list[list[int]]) -> None:
        ids = [token_id for burst in bursts for token_id in burst]
        in_bursts = Pieces(tokenizer)
        for burst in bursts:
            in_bursts.push(burst)
        pieces = pieces_of(tokenizer, ids)
        assert in_bursts.finish() == pieces
        assert len(pieces) == len(ids)
        assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=False)

    check()
