"""What a client sent, as sentences quote it: never longer than a line or two."""

from __future__ import annotations

import reprlib

MAX_QUOTED_CHARS = 100
CUT = "…"
_quotes = reprlib.Repr()
_quotes.maxstring = _quotes.maxother = MAX_QUOTED_CHARS
_quotes.maxlevel = 2


def quoted(value: object) -> str:
    """Its repr, without the middle of a long text and the rest of a long list."""
    return shortened(_quotes.repr(value))


def shortened(text: str, most_chars: int = MAX_QUOTED_CHARS) -> str:
    """`text`, or its start when it is longer."""
    return text if len(text) <= most_chars else text[: most_chars - len(CUT)] + CUT


def shortened_bytes(text: str, most_bytes: int) -> str:
    """The same by its length in UTF-8."""
    encoded = text.encode()
    if len(encoded) <= most_bytes:
        return text
    return encoded[: most_bytes - len(CUT.encode())].decode(errors="ignore") + CUT
