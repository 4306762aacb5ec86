"""Protobuf's wire format, written by hand: also what no library would write."""

from __future__ import annotations

VARINT, FIXED64, LENGTH, GROUP, GROUP_END, FIXED32 = range(6)  # wire types; 6 and 7 are none


def varint(number: int) -> bytes:
    """Negative numbers as two's complement of 64 bits."""
    rest, written = number % 2**64, bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*written, rest])


def tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def with_length(number: int, content: bytes) -> bytes:
    """A text, bytes, a message or a packed list as a field."""
    return tag(number, LENGTH) + varint(len(content)) + content
