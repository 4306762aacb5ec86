"""The journal's bytes: what is written is read, and what is cut or changed is noticed."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cachesvc.journal import Change, Entry, Filled, Head, Removed
from cachesvc.journal_format import decode, encode_entry, encode_head
from tests.cachesvc.builders import ints

PAGE_SIZE = 2
HEAD = Head("boot-1", "manager-2", "manager-1", 7, "tiny", PAGE_SIZE, 8)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def longs(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    count = draw(st.integers(0, 3))

    def column(values: st.SearchStrategy[int], length: int = count) -> list[int]:
        return draw(st.lists(values, min_size=length, max_size=length))

    page_ids = ints(*column(INT32))
    if draw(st.booleans()):
        return Removed(page_ids, longs(*column(INT64)))
    salts = st.lists(st.tuples(st.integers(0, 2), st.text(max_size=4)), max_size=2)
    return Filled(
        draw(st.integers(1, 2**62)),
        page_ids,
        longs(*column(INT64)),
        longs(*column(INT64)),
        ints(*column(INT32, count * PAGE_SIZE)).reshape(count, PAGE_SIZE),
        tuple(draw(salts)),
    )


ENTRIES = st.builds(Entry, INT64, st.lists(changes(), max_size=3).map(tuple))


def told(entry: Entry) -> tuple:
    """What compares."""
    return entry.plan_id, [
        [part.tolist() if isinstance(part, np.ndarray) else part for part in change]
        for change in entry.changes
    ]


def written(entries: list[Entry]) -> bytes:
    return encode_head(HEAD) + b"".join(map(encode_entry, entries))


@settings(deadline=None)
@given(st.lists(ENTRIES, max_size=4))
def test_what_is_written_is_read(entries: list[Entry]) -> None:
    kept = decode(written(entries))
    assert (kept.head, kept.void_because) == (HEAD, "")
    assert list(map(told, kept.entries)) == list(map(told, entries))


@settings(deadline=None)
@given(st.lists(ENTRIES, min_size=1, max_size=3), st.data())
def test_a_journal_that_is_cut_is_read_to_its_last_whole_entry(
    entries: list[Entry], draws: st.DataObject
) -> None:
    journal = written(entries)
    cut = draws.draw(st.integers(len(encode_head(HEAD)), len(journal) - 1))
    kept = decode(journal[:cut])
    assert kept.head == HEAD
    assert list(map(told, kept.entries)) == list(map(told, entries[: len(kept.entries)]))
    assert len(written(entries[: len(kept.entries) + 1])) > cut


@settings(deadline=None)
@given(st.lists(ENTRIES, min_size=1, max_size=3), st.data())
def test_an_entry_with_another_bit_ends_what_is_read(
    entries: list[Entry], draws: st.DataObject
) -> None:
    journal = bytearray(written(entries))
    at = draws.draw(st.integers(len(encode_head(HEAD)), len(journal) - 1))
    journal[at] ^= 1 << draws.draw(st.integers(0, 7))
    kept = decode(bytes(journal))
    assert kept.head == HEAD
    assert len(kept.entries) < len(entries)
    assert list(map(told, kept.entries)) == list(map(told, entries[: len(kept.entries)]))


def test_a_head_that_is_cut_or_changed_says_so() -> None:
    head = encode_head(HEAD)
    for journal in (b"", head[:5], head[:-1], head[:-1] + b"?"):
        assert decode(journal).void_because == "it is cut or changed in its head"


def test_a_journal_of_another_version_says_which() -> None:
    told = json.dumps({"format_version": 2, "boot_id": "boot-1"}).encode()
    from cachesvc import journal_format

    kept = decode(journal_format._framed(told))
    assert kept.void_because == "it is of format version 2, this manager's is 1"


def test_what_is_no_journal_says_so() -> None:
    from cachesvc import journal_format

    kept = decode(journal_format._framed(b"[1, 2]"))
    assert kept.void_because == "its head is not that of a journal"
