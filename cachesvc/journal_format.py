"""The journal in bytes: records, each after its length and its checksum. The first one is the head.

Numbers are little-endian. A file whose writer was killed ends in a whole record, or in a part of
one, which never counted: it is written before its plan is sent.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from cachesvc.journal import Change, Entry, Filled, Head, Kept, Removed

FORMAT_VERSION = 1

_FRAME = struct.Struct("<II")  # bytes of the record, CRC-32 of them
_ENTRY = struct.Struct("<qi")  # plan_id, changes
_CHANGE = struct.Struct("<Bqii")  # kind, first_serial, pages, salts
_SALT = struct.Struct("<iH")  # index, bytes
_FILLED, _REMOVED = 1, 2


def encode_head(head: Head) -> bytes:
    return _framed(json.dumps({"format_version": FORMAT_VERSION, **head._asdict()}).encode())


def encode_entry(entry: Entry) -> bytes:
    parts = [_ENTRY.pack(entry.plan_id, len(entry.changes))]
    for change in entry.changes:
        parts += _parts_of(change)
    return _framed(b"".join(parts))


def _framed(record: bytes) -> bytes:
    return _FRAME.pack(len(record), zlib.crc32(record)) + record


def _parts_of(change: Change) -> Iterator[bytes]:
    count = len(change.page_ids)
    if isinstance(change, Removed):
        yield _CHANGE.pack(_REMOVED, 0, count, 0)
        yield change.page_ids.astype("<i4").tobytes()
        yield change.same_as.astype("<i8").tobytes()
        return
    yield _CHANGE.pack(_FILLED, change.first_serial, count, len(change.salts))
    yield change.page_ids.astype("<i4").tobytes()
    yield change.parents.astype("<i8").tobytes()
    yield change.filled_by.astype("<i8").tobytes()
    yield change.ids.astype("<i4").tobytes()
    for index, salt in change.salts:
        encoded = salt.encode()
        yield _SALT.pack(index, len(encoded)) + encoded


def decode(journal: bytes) -> Kept:
    """What a journal holds, as far as it is whole."""
    records = _records(journal)
    first = next(records, None)
    if first is None:
        return Kept(None, void_because="it is cut or changed in its head")
    try:
        head = _decode_head(first)
        return Kept(head, [_decode_entry(record, head.page_size) for record in records])
    except _FormatError as error:
        return Kept(None, void_because=str(error))


class _FormatError(Exception):
    """A whole record that is none of ours, and why."""


def _records(journal: bytes) -> Iterator[bytes]:
    """Whole ones, up to the first that is not."""
    at = 0
    while at + _FRAME.size <= len(journal):
        length, checksum = _FRAME.unpack_from(journal, at)
        at += _FRAME.size
        record = journal[at : at + length]
        if len(record) < length or zlib.crc32(record) != checksum:
            return
        yield record
        at += length


def _decode_head(record: bytes) -> Head:
    try:
        fields: dict[str, Any] = json.loads(record)
        version = fields.pop("format_version")
        if version != FORMAT_VERSION:
            raise _FormatError(
                f"it is of format version {version}, this manager's is {FORMAT_VERSION}"
            )
        return Head(**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _FormatError("its head is not that of a journal") from error


def _decode_entry(record: bytes, page_size: int) -> Entry:
    try:
        plan_id, num_changes = _ENTRY.unpack_from(record)
        reader = _Reader(record, _ENTRY.size)
        changes = tuple(reader.change(page_size) for _ in range(num_changes))
    except (struct.error, ValueError) as error:
        raise _FormatError("an entry does not add up") from error
    return Entry(plan_id, changes)


class _Reader:
    """Reads a record part by part. Errors: ValueError or struct.error where it is too short."""

    def __init__(self, record: bytes, at: int) -> None:
        self._record = record
        self._at = at

    def change(self, page_size: int) -> Change:
        kind, first_serial, count, num_salts = self._numbers(_CHANGE)
        page_ids = self._array("<i4", count).astype(np.int32)
        if kind == _REMOVED:
            return Removed(page_ids, self._array("<i8", count).astype(np.int64))
        if kind != _FILLED:
            raise ValueError(kind)
        return Filled(
            first_serial,
            page_ids,
            self._array("<i8", count).astype(np.int64),
            self._array("<i8", count).astype(np.int64),
            self._array("<i4", count * page_size).astype(np.int32).reshape(count, page_size),
            tuple(self._salt() for _ in range(num_salts)),
        )

    def _numbers(self, layout: struct.Struct) -> tuple[Any, ...]:
        numbers = layout.unpack_from(self._record, self._at)
        self._at += layout.size
        return numbers

    def _array(self, dtype: str, count: int) -> Any:
        array = np.frombuffer(self._record, dtype, count, self._at)
        self._at += array.nbytes
        return array

    def _salt(self) -> tuple[int, str]:
        index, length = self._numbers(_SALT)
        encoded = self._record[self._at : self._at + length]
        self._at += length
        return index, encoded.decode()
