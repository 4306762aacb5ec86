"""Text and ids of a generation travel together, and end together at a stop string."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.detokenizer import Detokenizer
from gateway.seam import Seam
from gateway.stop_strings import StopStrings
from gateway.text_stream import Delta, TextStream
from gateway.tokenizer import Tokenizer
from tests.gateway.tiny_tokenizers import BACKENDS, CHINESE, EMOJI, KOREAN, THAI, load_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    return {kind: load_tiny(tmp_path_factory.mktemp(kind), kind) for kind in BACKENDS}


@pytest.fixture
def byte_level(tiny: dict[str, Tokenizer]) -> Tokenizer:
    return tiny["byte_level"]


def ids_of(tokenizer: Tokenizer, *tokens: str) -> list[int]:
    return [tokenizer.backend.token_to_id(token) for token in tokens]


def said(delta: Delta) -> tuple[str, tuple[int, ...]]:
    """Its text and ids."""
    assert len(delta.starts) == len(delta.token_ids)
    return delta.text, delta.token_ids


def text_of(tokenizer: Tokenizer, prompt_ids: list[int], output_ids: list[int]) -> str:
    detokenizer = Detokenizer(tokenizer, prompt_ids)
    return "".join(map(detokenizer.push, output_ids)) + detokenizer.flush()


def test_an_id_comes_with_the_last_character_of_its_text(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("👍a")
    stream = TextStream(byte_level, [])
    assert [said(stream.push([token_id])) for token_id in ids] == [
        *[("", ())] * 3,
        ("👍", tuple(ids[:4])),
        ("a", (ids[4],)),
    ]


def test_case_7_4_the_tokens_of_a_stop_string_are_never_delivered(byte_level: Tokenizer) -> None:
    """Stop 'own fox' with the pieces ' br', 'own', ' f', 'ox' and what follows (case 7.4)."""
    ids = byte_level.encode("The quick brown fox jumps")
    stop_start = len(byte_level.encode("The quick br"))
    stream = TextStream(byte_level, [], ["own fox"])
    deltas = [stream.push([token_id]) for token_id in ids]
    assert "".join(delta.text for delta in deltas) == "The quick br"
    assert [token_id for delta in deltas for token_id in delta.token_ids] == ids[:stop_start]
    assert (stream.stopped, stream.kept_tokens) == ("own fox", stop_start)
    assert said(stream.finish()) == ("", ())


def test_a_token_that_ends_in_the_stop_string_is_kept_but_not_delivered(
    byte_level: Tokenizer,
) -> None:
    (quick,) = ids_of(byte_level, "ick")
    stream = TextStream(byte_level, [], ["k"])
    assert said(stream.push([quick])) == ("ic", ())
    assert (stream.stopped, stream.kept_tokens) == ("k", 1)


def test_case_7_4_a_stop_string_in_the_last_token_of_a_character(byte_level: Tokenizer) -> None:
    """Stop inside a multi-byte character's last token (case 7.4)."""
    ids = byte_level.encode("a👍b")
    stream = TextStream(byte_level, [], ["👍"])
    assert said(stream.push(ids)) == ("a", (ids[0],))
    assert (stream.stopped, stream.kept_tokens) == ("👍", 1)


def test_a_stop_string_that_is_included_comes_with_its_tokens(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("The quick brown fox jumps")
    stop_end = len(byte_level.encode("The quick brown fox"))
    stream = TextStream(byte_level, [], ["own fox"], include_stop=True)
    deltas = [stream.push([token_id]) for token_id in ids]
    assert "".join(delta.text for delta in deltas) == "The quick brown fox"
    assert [token_id for delta in deltas for token_id in delta.token_ids] == ids[:stop_end]
    assert (stream.stopped, stream.kept_tokens) == ("own fox", stop_end)


def test_a_token_that_goes_on_after_an_included_stop_string_is_kept_but_not_delivered(
    byte_level: Tokenizer,
) -> None:
    (quick,) = ids_of(byte_level, "ick")
    stream = TextStream(byte_level, [], ["i"], include_stop=True)
    assert said(stream.push([quick])) == ("i", ())
    assert (stream.stopped, stream.kept_tokens) == ("i", 1)


def test_it_is_delivered_to_whoever_wants_whole_ids(byte_level: Tokenizer) -> None:
    (quick,) = ids_of(byte_level, "ick")
    stream = TextStream(byte_level, [], ["i"], include_stop=True, whole_ids=True)
    assert said(stream.push([quick])) == ("i", (quick,))
    assert (stream.stopped, stream.kept_tokens) == ("i", 1)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_a_kept_character_keeps_all_of_its_tokens(tiny: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = tiny[kind]
    prompt_ids = tokenizer.encode("x")
    ids = [*tokenizer.encode("x👍€x")[-8:]]
    stream = TextStream(tokenizer, prompt_ids, ["€"])
    delta = stream.push(ids)
    assert said(delta) == ("👍", tuple(ids[:4]))
    assert (stream.stopped, stream.kept_tokens) == ("€", 4)


def test_case_7_4_held_text_and_its_ids_are_flushed_at_the_end(byte_level: Tokenizer) -> None:
    """Stop 'abc', 'ab', then the end of the text or max_tokens (case 7.4)."""
    ids = byte_level.encode("ab")
    stream = TextStream(byte_level, [], ["abc"])
    assert said(stream.push(ids)) == ("", ())
    assert stream.kept_tokens == len(ids)
    assert said(stream.finish()) == ("ab", tuple(ids))
    assert (stream.stopped, stream.kept_tokens) == (None, len(ids))


def test_a_stop_string_in_bytes_is_found_at_the_end(tiny: dict[str, Tokenizer]) -> None:
    """A byte run ends with the output only, and so a stop string in it is found by `finish`."""
    tokenizer = tiny["byte_fallback"]
    ids = tokenizer.encode("x。")[-3:]
    stream = TextStream(tokenizer, tokenizer.encode("x"), ["。"])
    assert said(stream.push(ids)) == ("", ())
    assert stream.stopped is None
    assert said(stream.finish()) == ("", ())
    assert (stream.stopped, stream.kept_tokens) == ("。", 0)


@pytest.mark.parametrize("skip", [True, False])
def test_case_9_8_an_end_token_counts_but_has_no_text(byte_level: Tokenizer, *, skip: bool) -> None:
    """The end token's text is not shown, with special tokens shown too (case 9.8)."""
    ids = [*byte_level.encode("a"), *ids_of(byte_level, "</s>")]
    stream = TextStream(byte_level, [], skip_special_tokens=skip)
    assert said(stream.push(ids)) == ("a", tuple(ids))
    assert said(stream.finish()) == ("", ())
    assert stream.kept_tokens == 2


def test_case_9_8_with_ignore_eos_an_end_token_decodes_like_any_other(
    byte_level: Tokenizer,
) -> None:
    """Ignore_eos true, special tokens skipped and shown (case 9.8)."""
    ids = [*byte_level.encode("a"), *ids_of(byte_level, "</s>"), *byte_level.encode("b")]
    for skip, text in ((True, "ab"), (False, "a</s>b")):
        stream = TextStream(byte_level, [], skip_special_tokens=skip, end_token_ids=frozenset())
        assert said(stream.push(ids)) == (text, tuple(ids))


def test_an_end_token_between_held_tokens_waits_for_its_turn(byte_level: Tokenizer) -> None:
    a, b = byte_level.encode("ab")
    (end,) = ids_of(byte_level, "</s>")
    stream = TextStream(byte_level, [], ["abc"])
    assert said(stream.push([a, end, b])) == ("", ())
    assert said(stream.push([a])) == ("ab", (a, end, b))


def test_a_shown_id_has_its_text_though_it_is_special(byte_level: Tokenizer) -> None:
    (end,) = ids_of(byte_level, "<|end|>")
    ids = [*byte_level.encode("a"), end, *ids_of(byte_level, "<s>")]
    stream = TextStream(byte_level, [end], shown_ids=frozenset([end]))
    assert said(stream.push(ids)) == ("a<|end|>", tuple(ids))


def test_an_id_knows_where_its_text_begins(tiny: dict[str, Tokenizer]) -> None:
    """Ids of one character begin with it; an end token begins where the text ends."""
    for kind, count in (("byte_level", 4), ("byte_fallback", 4)):
        tokenizer = tiny[kind]
        end = tokenizer.backend.token_to_id("</s>")
        ids = [*tokenizer.encode("xo👍o")[-count - 2 :], end]
        stream = TextStream(tokenizer, tokenizer.encode("x"))
        deltas = [stream.push([token_id]) for token_id in ids] + [stream.finish()]
        assert [start for delta in deltas for start in delta.starts] == [0, 1, 1, 1, 1, 2, 3]


@pytest.mark.parametrize(
    ("min_tokens", "text", "stopped"),
    [
        (0, "a", "bb"),
        (2, "ab", "bb"),  # the first bb begins in the second token
        (3, "abb", "bb"),
        (4, "abbbb", None),  # but one b is left
        (9, "abbbb", None),
        (-1, "a", "bb"),  # the manager refuses it
    ],
)
def test_a_stop_string_counts_once_it_begins_after_min_tokens(
    byte_level: Tokenizer, min_tokens: int, text: str, stopped: str | None
) -> None:
    """Else an answer had fewer tokens than it must."""
    ids = byte_level.encode("abbbb")
    assert len(ids) == 5
    for bursts in ([ids], [[token_id] for token_id in ids]):
        stream = TextStream(byte_level, [], ["bb"], min_tokens=min_tokens)
        deltas = [*map(stream.push, bursts), stream.finish()]
        assert "".join(delta.text for delta in deltas) == text
        assert stream.stopped == stopped
        assert stream.kept_tokens == len(text) >= min(min_tokens, len(ids))


def test_text_of_the_first_min_tokens_is_not_held(byte_level: Tokenizer) -> None:
    a, b = byte_level.encode("ab")
    stream = TextStream(byte_level, [], ["ab"], min_tokens=1)
    assert said(stream.push([a])) == ("a", (a,))
    assert said(stream.push([b])) == ("b", (b,))
    assert said(stream.push([a])) == ("", ())


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_a_character_that_min_tokens_reach_into_is_in_no_stop_string(
    tiny: dict[str, Tokenizer], kind: str
) -> None:
    tokenizer = tiny[kind]
    ids = tokenizer.encode("x👍👍x")[-9:]
    for min_tokens, text in ((0, ""), (1, "👍"), (4, "👍"), (5, "👍👍x")):
        stream = TextStream(tokenizer, tokenizer.encode("x"), ["👍"], min_tokens=min_tokens)
        assert stream.push(ids).text + stream.finish().text == text
        assert stream.kept_tokens >= min_tokens


@pytest.mark.parametrize("text", [KOREAN, THAI, EMOJI, CHINESE])
@pytest.mark.parametrize("burst_len", [1, 2, 5])
def test_case_7_1_bursts_do_not_change_the_text(
    byte_level: Tokenizer, text: str, burst_len: int
) -> None:
    """Delivered in bursts of 1, 2 and 5 tokens (random ones below) (case 7.1)."""
    ids = byte_level.encode(text)
    stream = TextStream(byte_level, byte_level.encode("x"))
    bursts = [ids[start : start + burst_len] for start in range(0, len(ids), burst_len)]
    assert "".join(stream.push(burst).text for burst in bursts) + stream.finish().text == text


def test_a_character_that_resumed_ids_leave_unfinished_comes_whole(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a👍b")
    stream = TextStream(byte_level, [])
    resumed = stream.resume(ids[:3])
    assert resumed.text == "a"
    assert Seam(resumed).new(stream.push(ids[3:]))[:2] == ("👍b", tuple(ids[3:]))


def test_the_first_resumed_word_makes_the_next_one_keep_its_space(
    tiny: dict[str, Tokenizer],
) -> None:
    tokenizer = tiny["byte_fallback"]
    hello, world = ids_of(tokenizer, "Hello", "▁world")
    stream = TextStream(tokenizer, [])
    resumed = stream.resume([hello])
    assert (resumed.text, Seam(resumed).new(stream.push([world])).text) == ("Hello", " world")


def test_a_stop_string_across_the_seam_ends_the_answer(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("The quick brown fox jumps")
    before = len(byte_level.encode("The quick brown"))
    stream = TextStream(byte_level, [], ["own fox"])
    resumed = stream.resume(ids[:before])
    assert resumed.text == "The quick brown"
    assert Seam(resumed).new(stream.push(ids[before:]))[:2] == ("", ())
    assert stream.stopped == "own fox"


@pytest.mark.parametrize("kind", list(BACKENDS))
def test_an_answer_cut_off_anywhere_goes_on_without_a_seam(
    tiny: dict[str, Tokenizer], kind: str
) -> None:
    tokenizer = tiny[kind]
    characters = [tokenizer.encode(char) for char in KOREAN + EMOJI + "é€。 two"]
    some = [*characters, tokenizer.encode("Hello world"), *([i] for i in tokenizer.special_ids)]
    pieces = ["녕", "세 ", "🏽", "€", "é", " ", "wor", "lo", "o w"]

    @settings(max_examples=200, deadline=None)
    @given(
        prompt=st.lists(st.sampled_from(some), max_size=2),
        answer=st.lists(st.sampled_from(some), max_size=8),
        cut=st.integers(0, 24),
        stops=st.lists(st.sampled_from(pieces), max_size=2),
    )
    def check(prompt: list[list[int]], answer: list[list[int]], cut: int, stops: list[str]) -> None:
        prompt_ids, ids = list(chain(*prompt)), list(chain(*answer))
        stream = TextStream(tokenizer, prompt_ids, stops)
        before = stream.push(ids[:cut])
        after, end = stream.push(ids[cut:]), stream.finish()
        whole = before.text + after.text + end.text
        if "\ufffd" in text_of(tokenizer, prompt_ids, ids):
            return  # one bad byte more changes text that had been told: no seam is exact then

        again = TextStream(tokenizer, prompt_ids, stops)
        resumed = again.resume(before.token_ids)
        assert before.text.startswith(resumed.text), "a client holds no less than its ids say"
        seam = Seam(resumed)
        deltas = [seam.new(again.push([token_id])) for token_id in ids[len(before.token_ids) :]]
        deltas.append(seam.new(again.finish()))
        assert resumed.text + "".join(delta.text for delta in deltas) == whole
        new_ids = [token_id for delta in deltas for token_id in delta.token_ids]
        assert new_ids == [*after.token_ids, *end.token_ids]
        assert (again.stopped, again.kept_tokens) == (stream.stopped, stream.kept_tokens)

    check()


@pytest.mark.parametrize("kind", list(BACKENDS))
def test_any_bursts_give_the_same_text_ids_and_count(tiny: dict[str, Tokenizer], kind: str) -> None:
    """The model decodes all at once, cuts at the stop string, and tries each number of tokens."""
    tokenizer = tiny[kind]
    texts = [KOREAN, EMOJI, "é€。", "Hello world  two"]
    some = [*tokenizer.special_ids, *(token for text in texts for token in tokenizer.encode(text))]
    token_ids = st.sampled_from(some) | st.integers(0, tokenizer.backend.get_vocab_size())
    bursts = st.lists(st.lists(token_ids, max_size=6), max_size=8)
    pieces = ["녕", "세 ", "하세요", "🏽", "€", "é", " ", "wor", "lo", "\ufffd", "o w", "好"]
    stops = st.lists(st.sampled_from(pieces), max_size=3)

    @settings(max_examples=300, deadline=None)
    @given(
        prompt_ids=st.lists(token_ids, max_size=3),
        bursts=bursts,
        stops=stops,
        include_stop=st.booleans(),
    )
    def check(
        prompt_ids: list[int], bursts: list[list[int]], stops: list[str], include_stop: bool
    ) -> None:
        ids = [token_id for burst in bursts for token_id in burst]
        stop_strings = StopStrings(stops, include_stop=include_stop)
        kept = stop_strings.push(text_of(tokenizer, prompt_ids, ids)) + stop_strings.flush()

        stream = TextStream(tokenizer, prompt_ids, stops, include_stop=include_stop)
        deltas = [*map(stream.push, bursts), stream.finish()]
        delivered = [token_id for delta in deltas for token_id in delta.token_ids]
        assert "".join(delta.text for delta in deltas) == kept
        assert stream.stopped == stop_strings.matched
        assert delivered == ids[: len(delivered)]
        if stop_strings.matched is None:
            assert delivered == ids
            assert stream.kept_tokens == len(ids)
        elif "\ufffd" not in text_of(tokenizer, prompt_ids, ids):
            covering = next(
                num_tokens
                for num_tokens in range(len(ids) + 1)
                if text_of(tokenizer, prompt_ids, ids[:num_tokens]).startswith(kept)
            )
            assert stream.kept_tokens == max(covering, len(delivered))
            assert kept.startswith(text_of(tokenizer, prompt_ids, delivered))

        one_by_one = TextStream(tokenizer, prompt_ids, stops, include_stop=include_stop)
        again = [*(one_by_one.push([token_id]) for token_id in ids), one_by_one.finish()]
        assert [token_id for delta in again for token_id in delta.token_ids] == delivered
        assert one_by_one.kept_tokens == stream.kept_tokens

        whole = TextStream(tokenizer, prompt_ids, stops, include_stop=include_stop, whole_ids=True)
        deltas = [*map(whole.push, bursts), whole.finish()]
        assert [token_id for delta in deltas for token_id in delta.token_ids] == ids[
            : stream.kept_tokens
        ]

    check()
