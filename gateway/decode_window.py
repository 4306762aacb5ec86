"""Decodes ids one after another by decoding the last few of them together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import tokenizers

REPLACEMENT = "\ufffd"

KEPT_IDS = 8  # what stays of a full window. A UTF-8 character spans 4 tokens at most
FULL_IDS = 16


class DecodeWindow:
    """The last ids of a sequence, and how many characters of their common text were given out.

    A decode of a part differs from the decode of the whole at its start alone (a first space is
    dropped, a cut character is U+FFFD), so text is taken from the end of a window that begins some
    ids earlier. An unfinished character at the end of a byte-level text is one U+FFFD, and with
    `holds_replacement` it waits in `held`.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        ids_backwards: Iterator[int],
        *,
        holds_replacement: bool,
    ) -> None:
        """`ids_backwards` gives the ids before the first to append, the last one first; few of them
        are taken.
        """
        self._backend = backend
        self._holds_replacement = holds_replacement
        self._ids: list[int] = []
        while earlier := list(islice(ids_backwards, max(KEPT_IDS, len(self._ids)))):
            self._ids = earlier[::-1] + self._ids
            if len(self._decode(self._ids)) > 1:
                break
        self._full_ids = max(FULL_IDS, len(self._ids))
        self._given_chars = 0
        self.held = ""
        self.append([])

    def append(self, ids: Iterable[int]) -> str:
        """The text that the ids add to what was given before, less `held`. Costs a decode of
        FULL_IDS at most.
        """
        self._ids.extend(ids)
        text = self._decode(self._ids)
        end = len(text) - len(self._held_at_end(text))
        fresh = text[self._given_chars : end]
        self.held = text[end:]
        self._given_chars = max(self._given_chars, end)
        if len(self._ids) > self._full_ids:
            self._shorten()
        return fresh

    def preview(self, ids: list[int]) -> str:
        """The text that the ids would add, with what would be held, if nothing came after them."""
        return self._decode(self._ids + ids)[self._given_chars :]

    def _shorten(self) -> None:
        tail = self._ids[-KEPT_IDS:]
        given_chars = len(self._decode(tail)) - len(self.held)
        if given_chars > 0:
            self._ids, self._given_chars, self._full_ids = tail, given_chars, FULL_IDS
        else:  # nothing shows yet: what a decoder does to a text's start would befall the next text
            self._full_ids *= 2

    def _held_at_end(self, text: str) -> str:
        return REPLACEMENT if self._holds_replacement and text.endswith(REPLACEMENT) else ""

    def _decode(self, ids: list[int]) -> str:
        return self._backend.decode(ids, skip_special_tokens=False)
