"""Values at and beyond the edges of what fields take."""

from __future__ import annotations

import random
import struct

INTS = (0, 1, -1, -2, 2, 7, 64, 100, 101, 127, 128, 129, 255, 256, 257, 999, 1000, 1001, 65536)
EDGES = tuple(
    sign * 2**power + off for power in (31, 32, 53, 63) for sign in (1, -1) for off in (0, -1, 1)
)
FLOATS = (0.0, -0.0, 1.0, 0.5, -1.0, 1e-45, 1e-38, -1e-45, 2.0, 100.0, 1e4, 1.0000001, 3.4e38)
NO_NUMBERS = (float("nan"), float("inf"), float("-inf"))
LENGTHS = (1, 3, 17, 64, 129, 256, 257, 400, 4_097, 12_000)  # characters of a text
NAMES = ("fuzz-0", "fuzz-1", "fuzz-2")  # few, so that live requests meet their likes
OBJECTS = (  # texts of JSON objects, or nearly
    "{}",
    '{"a": "\\ud800"}',
    '{"\\udfff": 1}',
    '{"a": NaN, "b": -Infinity, "c": 1e999}',
    '{"a": %s}' % ("9" * 4_000),
    '{"a": %s}' % ("9" * 5_000),
    '{"a":' * 150 + "1" + "}" * 150,
    '{"a":' * 900 + "1" + "}" * 900,
    '{"a":' * 3_000 + "1" + "}" * 3_000,
    '{"a": 1, "a": 2}',
    '{"type": "object", "properties": null}',
    '{"properties": {"x": {"type": ["object"], "enum": {}}}}',
    "[]",
    "null",
)
TEXTS = (
    "",
    " ",
    "a",
    "\0",
    "a\0b",
    "\r\n",
    "\ufeff",
    "\ufffd",
    "\U0010ffff",
    "\u202e\u2066",
    "e\u0301" * 20,
    "👩🏽‍🚀👍🏿" * 5,
    "ﷺ" * 10,
    "{{ 1/0 }}{% raw %}",
    "%s%n{0}\\",
    "<s></s><|end|><think>",
    "../../etc/passwd",
    '{"a": [' * 30,
)
NO_TEXTS = (
    b"\xff",
    b"\x80",
    b"\xc0\xaf",  # a slash, too long
    b"\xed\xa0\x80",  # half of a surrogate pair
    b"\xed\xb0\x80\xed\xa0\x80",
    b"\xf4\x90\x80\x80",  # past the last character
    b"caf\xc3",
)


def some_int(rng: random.Random) -> int:
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(EDGES)
    return rng.choice(INTS) if kind < 3 else rng.randrange(-(2**63), 2**63)


def some_float(rng: random.Random) -> float:
    kind = rng.randrange(3)
    if kind == 0:
        return rng.choice(NO_NUMBERS)
    if kind == 1:
        return rng.choice(FLOATS)
    (drawn,) = struct.unpack("<f", rng.randbytes(4))
    return float(drawn)


def some_text(rng: random.Random) -> str:
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice(NAMES)
    if kind == 4:
        return rng.choice(OBJECTS)
    if kind == 1:
        return rng.choice(TEXTS)
    if kind == 2:
        return rng.choice(("x", "é", "好", "👍", "'", "\n")) * rng.choice(LENGTHS)
    points = (rng.randrange(0x110000) for _ in range(rng.randrange(40)))
    return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)


def some_bytes(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(200))
