"""A journal in memory, in the bytes that a file would have."""

from __future__ import annotations

from cachesvc.journal import Entry, Head, Kept
from cachesvc.journal_format import decode, encode_entry, encode_head

LONG_ENTRIES = 12  # few, so that histories meet it


class MemoryJournal:
    """Begins with what was `found`; b"": nothing."""

    def __init__(self, found: bytes = b"") -> None:
        self.found = self.written = found
        self.kept: Kept | None = decode(found) if found else None
        self._num_entries = 0

    @property
    def is_long(self) -> bool:
        return self._num_entries > LONG_ENTRIES

    def append(self, entry: Entry) -> None:
        self._num_entries += 1
        self.written += encode_entry(entry)

    def discard(self) -> None:
        self.written = b""

    def replace(self, head: Head, entry: Entry) -> None:
        self._num_entries = 1
        self.written = encode_head(head) + encode_entry(entry)
