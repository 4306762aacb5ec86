"""What a client sent does not come back at full length."""

from __future__ import annotations

import pytest

from servicekit.quoting import MAX_QUOTED_CHARS, quoted, shortened, shortened_bytes


@pytest.mark.parametrize("value", ["a name", "it's", 5, -1.5, None, True])
def test_what_is_short_is_quoted_as_it_is(value: object) -> None:
    assert quoted(value) == repr(value)


@pytest.mark.parametrize(
    "value", ["x" * 10**6, 10**400, "\ud800é" * 500, [[["x" * 90] * 9] * 9] * 9]
)
def test_what_is_long_is_quoted_in_part(value: object) -> None:
    text = quoted(value)
    assert "..." in text or text.endswith("…")
    assert len(text) <= MAX_QUOTED_CHARS


def test_a_long_text_is_cut_and_says_so() -> None:
    assert shortened("x" * 5, 5) == "xxxxx"
    assert shortened("x" * 6, 5) == "xxxx…"


@pytest.mark.parametrize("most_bytes", range(3, 12))
def test_a_text_is_cut_between_characters(most_bytes: int) -> None:
    cut = shortened_bytes("aé👍文z", most_bytes)
    assert len(cut.encode()) <= most_bytes
    assert cut == "aé👍文z" or (cut.endswith("…") and "aé👍文z".startswith(cut[:-1]))
