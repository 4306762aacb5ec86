"""The sum of the pieces is the decode of the whole, which the tokenizers library gives."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from gateway.detokenizer import Detokenizer
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


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    return {kind: load_tiny(tmp_path_factory.mktemp(kind), kind) for kind in BACKENDS}


def output_text(
    tokenizer: Tokenizer, prompt_ids: list[int], output_ids: list[int], *, skip: bool = True
) -> str:
    """The model: the decode of all, less what it shares with the decode of the prompt."""
    whole = tokenizer.decode(prompt_ids + output_ids, skip_special_tokens=skip)
    prompt = tokenizer.decode(prompt_ids, skip_special_tokens=skip)
    common = list(takewhile(lambda pair: pair[0] == pair[1], zip(whole, prompt, strict=False)))
    return whole[len(common) :]


def pieces(
    tokenizer: Tokenizer, prompt_ids: list[int], output_ids: list[int], *, skip: bool = True
) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt_ids, skip_special_tokens=skip)
    return [*map(detokenizer.push, output_ids), detokenizer.flush()]


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("text", [KOREAN, THAI, EMOJI, CHINESE])
def test_case_7_1_each_character_comes_whole_and_once(
    tiny: dict[str, Tokenizer], kind: str, text: str
) -> None:
    """A character that spans tokens is neither cut nor dropped, and shows no U+FFFD (case 7.1)."""
    tokenizer = tiny[kind]
    ids = tokenizer.encode(text)
    assert len(ids) > len(text)
    given_out = pieces(tokenizer, tokenizer.encode("x"), ids)
    assert "".join(given_out) == output_text(tokenizer, tokenizer.encode("x"), ids)
    assert "\ufffd" not in "".join(given_out)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("text", [KOREAN, THAI, EMOJI, CHINESE])
def test_case_7_1_a_cut_character_is_replaced_at_the_cut_end_only(
    tiny: dict[str, Tokenizer], kind: str, text: str
) -> None:
    """Cut by max_tokens at every place, in mid-character too (case 7.1)."""
    tokenizer = tiny[kind]
    ids = tokenizer.encode(text)
    for num_tokens in range(len(ids) + 1):
        *before_the_end, last = pieces(tokenizer, [], ids[:num_tokens])
        assert "\ufffd" not in "".join(before_the_end)
        assert "".join(before_the_end) + last == tokenizer.decode(ids[:num_tokens])


def test_case_7_1_text_is_given_out_as_soon_as_its_character_is_whole(
    tiny: dict[str, Tokenizer],
) -> None:
    """Three of an emoji's four bytes give nothing, the last gives it all (case 7.1)."""
    tokenizer = tiny["byte_level"]
    ids = tokenizer.encode("👍a")
    assert len(ids) == 5
    assert pieces(tokenizer, [], ids) == ["", "", "", "👍", "a", ""]


LLAMA_TEXTS = [
    "Hello world  two spaces",
    "  Hello",
    "\nHello",
    " ",
    "   ",
    "Hello<s> world",
    "é好€",
]


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("text", LLAMA_TEXTS)
@pytest.mark.parametrize("prompt", ["", "Hello", "<s>", "<s>Hello world", " ", "Hello world " * 9])
def test_case_7_7_spaces_survive_piecewise_decoding(
    tiny: dict[str, Tokenizer], prompt: str, text: str, *, skip: bool
) -> None:
    """The SentencePiece decode drops the first space of a text; pieces are not texts (case 7.7)."""
    tokenizer = tiny["byte_fallback"]
    prompt_ids = tokenizer.encode(prompt) if prompt else []
    ids = tokenizer.encode(text)
    expected = output_text(tokenizer, prompt_ids, ids, skip=skip)
    assert "".join(pieces(tokenizer, prompt_ids, ids, skip=skip)) == expected


def test_case_7_7_a_lone_space_token_is_a_space_after_a_prompt(tiny: dict[str, Tokenizer]) -> None:
    """'▁' alone (case 7.7)."""
    tokenizer = tiny["byte_fallback"]
    space_id = tokenizer.backend.token_to_id("▁")
    assert "".join(pieces(tokenizer, tokenizer.encode("Hello"), [space_id])) == " "
    assert "".join(pieces(tokenizer, [], [space_id])) == ""
    assert "".join(pieces(tokenizer, [], [space_id, space_id])) == " "


def test_case_7_7_a_special_token_neither_adds_nor_eats_a_space(tiny: dict[str, Tokenizer]) -> None:
    """A special token in the middle, skip_special_tokens on and off (case 7.7)."""
    tokenizer = tiny["byte_fallback"]
    hello, world = (tokenizer.backend.token_to_id(token) for token in ("Hello", "▁world"))
    special = tokenizer.backend.token_to_id("<|end|>")
    prompt_ids = tokenizer.encode("x")
    ids = [hello, special, world]
    assert pieces(tokenizer, prompt_ids, ids) == ["Hello", "", " world", ""]
    assert pieces(tokenizer, prompt_ids, ids, skip=False) == ["Hello", "<|end|>", " world", ""]


def test_a_byte_run_is_held_until_it_ends_as_a_bad_byte_spoils_all_of_it(
    tiny: dict[str, Tokenizer],
) -> None:
    tokenizer = tiny["byte_fallback"]
    byte = {value: token_id for token_id, value in tokenizer.byte_values.items()}
    good = [byte[value] for value in "€".encode()]
    x = tokenizer.backend.token_to_id("x")
    prompt_ids = tokenizer.encode("x")
    assert pieces(tokenizer, prompt_ids, [*good, x]) == ["", "", "", "€x", ""]
    assert pieces(tokenizer, prompt_ids, [*good, byte[0xFF], x])[-2:] == ["\ufffd" * 4 + "x", ""]


def test_a_character_that_the_prompt_leaves_unfinished_belongs_to_the_output(
    tiny: dict[str, Tokenizer],
) -> None:
    tokenizer = tiny["byte_level"]
    ids = tokenizer.encode("a👍b")
    for cut in range(2, 5):
        assert "".join(pieces(tokenizer, ids[:cut], ids[cut:])) == "👍b"
        assert "".join(pieces(tokenizer, ids[:cut], ids[-1:])) == "b"
    assert "".join(pieces(tokenizer, ids[:5], ids[5:])) == "b"


def test_an_emoji_in_bytes_at_the_end_of_the_prompt_stays_the_prompts(
    tiny: dict[str, Tokenizer],
) -> None:
    tokenizer = tiny["byte_fallback"]
    prompt_ids = tokenizer.encode("x👍")
    assert "".join(pieces(tokenizer, prompt_ids, [tokenizer.backend.token_to_id("x")])) == "x"
    thumb = [token_id for token_id in prompt_ids if token_id in tokenizer.byte_values]
    assert "".join(pieces(tokenizer, prompt_ids, thumb)) == "👍"


def test_ids_that_the_tokenizer_does_not_know_have_no_text(tiny: dict[str, Tokenizer]) -> None:
    tokenizer = tiny["byte_level"]
    ids = tokenizer.encode("👍")
    assert "".join(pieces(tokenizer, [], [999, *ids[:2], 998, *ids[2:], 999])) == "👍"


def test_an_added_token_that_is_not_special_is_shown(tiny: dict[str, Tokenizer]) -> None:
    tokenizer = tiny["byte_level"]
    ids = tokenizer.encode("a<think>b")
    assert "".join(pieces(tokenizer, [], ids)) == "a<think>b"


def token_ids(tokenizer: Tokenizer) -> st.SearchStrategy[int]:
    """Any id, and often those with which decoding goes wrong."""
    backend = tokenizer.backend
    bytes_and_spaces = [
        backend.token_to_id(token)
        for token in ("Ġ", "ð", "Ł", "ĺ", "Ģ", "ÿ", "▁", "▁▁", "<0xF0>", "<0x9F>", "<0x20>", "##s")
        if backend.token_to_id(token) is not None
    ]
    by_bytes = [ids for text in (KOREAN, EMOJI, "é€") for ids in tokenizer.encode(text)]
    every = st.integers(0, backend.get_vocab_size() + 5)
    often = st.sampled_from([*bytes_and_spaces, *tokenizer.special_ids, *by_bytes])
    return every | often


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("kind", list(BACKENDS))
def test_any_ids_in_pieces_are_the_decode_of_the_whole(
    tiny: dict[str, Tokenizer], kind: str, *, skip: bool
) -> None:
    tokenizer = tiny[kind]
    ids = st.lists(token_ids(tokenizer), max_size=40)

    @settings(max_examples=400, deadline=None)
    @given(prompt_ids=ids, output_ids=ids)
    def check(prompt_ids: list[int], output_ids: list[int]) -> None:
        expected = output_text(tokenizer, prompt_ids, output_ids, skip=skip)
        assert "".join(pieces(tokenizer, prompt_ids, output_ids, skip=skip)) == expected

    check()


@pytest.mark.parametrize("kind", list(BACKENDS))
def test_no_piece_is_ever_taken_back(tiny: dict[str, Tokenizer], kind: str) -> None:
    """What was given out at any time starts the decode of the whole, whatever comes after."""
    tokenizer = tiny[kind]
    ids = st.lists(token_ids(tokenizer), max_size=12)

    @settings(max_examples=200, deadline=None)
    @given(first=ids, rest=ids)
    def check(first: list[int], rest: list[int]) -> None:
        detokenizer = Detokenizer(tokenizer, [])
        given_out = "".join(map(detokenizer.push, first))
        assert tokenizer.decode(first + rest).startswith(given_out)
        assert tokenizer.decode(first).startswith(given_out)

    check()


class CountingBackend:
    """What a detokenizer uses of a backend, and how many ids it decoded."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.decoded_ids = 0

    def id_to_token(self, token_id: int) -> str | None:
        return self._backend.id_to_token(token_id)

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        self.decoded_ids += len(ids)
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("text", [ENGLISH, CHINESE, "好", "€", " ", "\u00ff"])
def test_the_cost_of_a_token_does_not_grow_with_the_output(
    tiny: dict[str, Tokenizer], kind: str, text: str
) -> None:
    """Counted in ids decoded: in long byte runs, spaces and prompts too."""
    tokenizer = tiny[kind]
    counting = CountingBackend(tokenizer.backend)
    ids = tokenizer.encode(text) * 200
    given_out = pieces(replace(tokenizer, backend=cast("Backend", counting)), ids, ids)
    assert "".join(given_out) == output_text(tokenizer, ids, ids)
    assert counting.decoded_ids < 20 * 2 * len(ids)
