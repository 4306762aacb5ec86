"""Values of flags that the fields of a request can hold, as types of argparse."""

from __future__ import annotations

from argparse import ArgumentTypeError


def int32(text: str) -> int:
    return _within(text, 2**31)


def int64(text: str) -> int:
    return _within(text, 2**63)


def utf8(text: str) -> str:
    """An argument that is not UTF-8 has surrogates in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ArgumentTypeError("it must be UTF-8") from None
    return text


def _within(text: str, bound: int) -> int:
    try:
        value = int(text)
    except ValueError:  # no number, or one of thousands of digits
        value = bound
    if not -bound <= value < bound:
        raise ArgumentTypeError(f"it must be a whole number from {-bound} to {bound - 1}")
    return value
