"""Stop strings over text in pieces, against a model that looks at the whole text at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stop_strings import StopStrings
from servicekit.errors import InvalidArgument, Reason


def stream(
    stops: list[str], pieces: list[str], *, include_stop: bool = False
) -> tuple[list[str], str | None]:
    """What each piece releases, then the end of the text; and the stop string matched."""
    stop_strings = StopStrings(stops, include_stop=include_stop)
    released = [*map(stop_strings.push, pieces), stop_strings.flush()]
    return released, stop_strings.matched


def whole(stops: list[str], text: str) -> tuple[str, str | None]:
    """The model: try each end in order, at each end the longest stop string."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


@pytest.mark.parametrize(
    ("stops", "pieces", "released", "matched"),
    [
        (["own fox"], ["The quick", " br", "own", " f", "ox"], "The quick br", "own fox"),
        (["\n"], ["?\n"], "?", "\n"),
        (["abc"], ["ab"], "ab", None),
        (["aab"], ["aaab"], "a", "aab"),
        (["aab"], ["a", "a", "a", "b"], "a", "aab"),
        (["ab", "abc"], ["xabc"], "x", "ab"),
        (["abc", "ab"], ["x", "a", "b", "c"], "x", "ab"),
        (["bc", "abc"], ["xabcd"], "x", "abc"),
        (["é"], ["caf", "é!"], "caf", "é"),
        (["b", "abcd"], ["abcd"], "a", "b"),
        (["b", "c"], ["a", "cb"], "a", "c"),
    ],
)
def test_case_7_4_nothing_of_a_stop_string_is_released(
    stops: list[str], pieces: list[str], released: str, matched: str | None
) -> None:
    """Across pieces, inside one, two stops of which one starts the other (case 7.4)."""
    given_out, found = stream(stops, pieces)
    assert ("".join(given_out), found) == (released, matched)
    assert whole(stops, "".join(pieces)) == (released, matched)


def test_case_7_4_text_that_only_began_a_stop_string_is_not_lost() -> None:
    """Stop 'abc', text 'ab', then the end: 'ab' is held, then flushed (case 7.4)."""
    assert stream(["abc"], ["ab"]) == (["", "ab"], None)


def test_case_7_4_nothing_comes_after_the_match() -> None:
    """Neither from the same piece nor from later ones (case 7.4)."""
    assert stream(["b"], ["abc", "def"]) == (["a", "", ""], "b")


@pytest.mark.parametrize(
    ("stops", "pieces", "released"),
    [
        (["own fox"], ["The br", "own", " f", "ox jumps"], ["The br", "", "", "own fox", ""]),
        (["b"], ["abc", "def"], ["ab", "", ""]),
        (["abc"], ["ab"], ["", "ab"]),
    ],
)
def test_a_match_that_is_included_is_released_at_once_and_ends_the_text(
    stops: list[str], pieces: list[str], released: list[str]
) -> None:
    assert stream(stops, pieces, include_stop=True)[0] == released


def test_text_is_released_as_soon_as_it_can_be_no_stop_string() -> None:
    assert stream(["own fox"], [" br", "own", " f", "ish"])[0] == [" br", "", "", "own fish", ""]
    assert stream(["aab"], ["aaa", "a", "c"])[0] == ["a", "a", "aac", ""]


def test_without_stop_strings_all_text_passes() -> None:
    assert stream([], ["a", "", "b"]) == (["a", "", "b", ""], None)


def test_an_empty_stop_string_is_refused_by_field() -> None:
    with pytest.raises(InvalidArgument, match="empty") as caught:
        StopStrings(["a", ""])
    assert caught.value.reason is Reason.INVALID_FIELD
    assert caught.value.metadata == {"field": "stop.strings"}


letters = st.text("abé", min_size=1, max_size=4)


@given(
    stops=st.lists(letters, max_size=4),
    pieces=st.lists(st.text("abé", max_size=5), max_size=8),
    include_stop=st.booleans(),
)
def test_case_7_4_the_stream_equals_the_whole_however_it_is_cut(
    stops: list[str], pieces: list[str], include_stop: bool
) -> None:
    """Stream == non-stream, and what is held at any time may still become a stop (case 7.4)."""
    stop_strings = StopStrings(stops, include_stop=include_stop)
    expected = whole(stops, "".join(pieces))
    if include_stop:
        expected = (expected[0] + (expected[1] or ""), expected[1])
    seen = released = ""
    for piece in pieces:
        seen += piece
        released += stop_strings.push(piece)
        assert expected[0].startswith(released)
        held = seen[len(released) :]
        if stop_strings.matched is None:
            assert held == "" or any(stop.startswith(held) for stop in stops)
    assert (released + stop_strings.flush(), stop_strings.matched) == expected
