"""The text of single ids."""

from __future__ import annotations

from functools import cached_property

from gateway.decode_window import REPLACEMENT
from gateway.pieces import Pieces
from gateway.token_bytes import TokenBytes
from gateway.tokenizer import Tokenizer


class TokenTexts:
    """What each id says in the middle of a text, special tokens shown; remembers those asked for.

    An id that has a part of a character says U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes = TokenBytes(tokenizer)
        self._texts: dict[int, str] = {}  # at most the vocabulary

    def __getitem__(self, token_id: int) -> str:
        text = self._texts.get(token_id)
        if text is None:
            pieces = Pieces(self._tokenizer)
            pieces.push([*self._before, token_id])
            text = self._texts[token_id] = pieces.finish()[-1]
        return text

    def bytes_of(self, token_id: int) -> bytes:
        """Its text in UTF-8; of a part of a character, that part: those of an answer's ids, joined,
        are the answer's.
        """
        text = self[token_id]
        part = self._bytes.of_part(token_id) if REPLACEMENT in text else None
        return text.encode() if part is None else part

    @cached_property
    def _before(self) -> list[int]:
        """Something to follow: tokenizers of the SentencePiece kind drop a text's first space."""
        return self._tokenizer.encode("a", add_special_tokens=False)
