"""Bad messages of any type, drawn from its descriptor, as bytes. Each kind is bad in its own way;
one may be good by chance.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tests.fuzz.spoilt import SPOILS
from tests.fuzz.values import NO_TEXTS, some_bytes, some_float, some_int, some_text
from tests.fuzz.wire import FIXED32, FIXED64, LENGTH, VARINT, tag, varint, with_length

Kind: TypeAlias = Callable[[random.Random, Descriptor, bytes], bytes]

MAX_DEPTH = 4
GIVEN = 0.4  # of the fields of a wild message
LONG_LIST = (0, 1, 2, 3, 65, 130, 1_030)
TOO_LONG_BYTES = (70_000, 270_000)  # over the gateway's bound, and over the transport's
VARINTS = {
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_UINT64,
    FieldDescriptor.TYPE_SINT32,
    FieldDescriptor.TYPE_SINT64,
    FieldDescriptor.TYPE_BOOL,
    FieldDescriptor.TYPE_ENUM,
}
FIXED64S = {
    FieldDescriptor.TYPE_FIXED64,
    FieldDescriptor.TYPE_SFIXED64,
    FieldDescriptor.TYPE_DOUBLE,
}


def wild(rng: random.Random, descriptor: Descriptor, valid: bytes) -> bytes:
    """Some of the fields, each with any value."""
    return _message(rng, descriptor)


def nearly(rng: random.Random, descriptor: Descriptor, valid: bytes) -> bytes:
    """A good one but for a field or two: what stands last in a message counts."""
    fields = rng.choices(descriptor.fields, k=rng.choice((1, 1, 2))) if descriptor.fields else ()
    return valid + b"".join(_nearly(rng, field) for field in fields)


def misfit(rng: random.Random, descriptor: Descriptor, valid: bytes) -> bytes:
    """A field in the encoding of another type."""
    number = rng.choice(descriptor.fields).number if descriptor.fields else 1
    return valid + _anything(rng, number)


def unknown(rng: random.Random, descriptor: Descriptor, valid: bytes) -> bytes:
    """Fields that there are none of, in encodings that there are none of among them."""
    numbers = (0, 999, 19_000, 2**29 - 1, 2**29, rng.randrange(100, 2**28))
    return valid + b"".join(_anything(rng, rng.choice(numbers)) for _ in range(rng.randrange(1, 4)))


def no_text(rng: random.Random, descriptor: Descriptor, valid: bytes) -> bytes:
    """A text that is no UTF-8."""
    texts = [each for each in descriptor.fields if each.type == FieldDescriptor.TYPE_STRING]
    number = rng.choice(texts).number if texts else 1
    return valid + with_length(number, rng.choice(NO_TEXTS))


def too_long(rng: random.Random, descriptor: Descriptor, valid: bytes) -> bytes:
    return valid + with_length(rng.choice((1, 2, 999)), b"x" * rng.choice(TOO_LONG_BYTES))


def _spoilt(spoil: Callable[[random.Random, bytes], bytes]) -> Kind:
    return lambda rng, _, valid: spoil(rng, valid)


KINDS: dict[str, tuple[Kind, int]] = {  # by name, with how often
    "wild": (wild, 30),
    "nearly": (nearly, 40),
    "misfit": (misfit, 8),
    "unknown": (unknown, 5),
    "no_text": (no_text, 5),
    "too_long": (too_long, 1),
    **{name: (_spoilt(spoil), 8) for name, spoil in SPOILS.items()},
}


def _message(rng: random.Random, descriptor: Descriptor, depth: int = 0) -> bytes:
    given = (field for field in descriptor.fields if rng.random() < GIVEN)
    return b"".join(_field(rng, field, depth) for field in given)


def _nearly(rng: random.Random, field: FieldDescriptor) -> bytes:
    """Down to one field of a message in the message; a list whole, now and then."""
    inner = field.message_type
    if inner is not None and inner.fields and rng.random() < 0.8:
        return with_length(field.number, _nearly(rng, rng.choice(inner.fields)))
    return _field(rng, field, 0)


def _field(rng: random.Random, field: FieldDescriptor, depth: int) -> bytes:
    if not field.is_repeated:
        return _single(rng, field, depth)
    count = rng.choice(LONG_LIST if depth == 0 else LONG_LIST[:4])
    if rng.random() < 0.5:  # one value, so often
        return _single(rng, field, depth) * count
    return b"".join(_single(rng, field, depth) for _ in range(count))


def _single(rng: random.Random, field: FieldDescriptor, depth: int) -> bytes:
    if field.message_type is not None:
        deeper = _message(rng, field.message_type, depth + 1) if depth < MAX_DEPTH else b""
        return with_length(field.number, deeper)
    if field.type == FieldDescriptor.TYPE_STRING:
        return with_length(field.number, some_text(rng).encode())
    if field.type == FieldDescriptor.TYPE_BYTES:
        return with_length(field.number, some_bytes(rng))
    if field.type in VARINTS:
        return tag(field.number, VARINT) + varint(some_int(rng))
    if field.type == FieldDescriptor.TYPE_FLOAT:
        return tag(field.number, FIXED32) + struct.pack("<f", some_float(rng))
    if field.type in FIXED64S:
        return tag(field.number, FIXED64) + (some_int(rng) % 2**64).to_bytes(8, "little")
    return tag(field.number, FIXED32) + (some_int(rng) % 2**32).to_bytes(4, "little")


def _anything(rng: random.Random, number: int) -> bytes:
    wire_type = rng.randrange(8)
    written = tag(number, wire_type)
    if wire_type == LENGTH:
        content = some_bytes(rng)
        return written + varint(rng.choice((len(content), len(content), 2**31, 2**40))) + content
    if wire_type == VARINT:
        return written + rng.choice((varint(some_int(rng)), b"\xff" * 11))
    lengths = {FIXED32: 4, FIXED64: 8}
    return written + rng.randbytes(lengths.get(wire_type, rng.randrange(6)))
