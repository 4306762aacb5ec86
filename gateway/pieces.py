"""The text of each id of a sequence."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.detokenizer import Detokenizer, Settled
from gateway.tokenizer import Tokenizer


class Pieces:
    """One text for each id, special tokens shown; joined they are the decode of all ids.

    A character that several ids share stands with the first of them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._detokenizer = Detokenizer(tokenizer, [], skip_special_tokens=False)
        self._texts: list[str] = []
        self._ends: list[int] = []  # of each id's text in the joined one, in characters

    def push(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            self._take(self._detokenizer.settle(token_id))

    def finish(self) -> list[str]:
        """The pieces. Push no more."""
        self._take(self._detokenizer.finish())
        text = "".join(self._texts)
        pieces, start = [], 0
        for end in self._ends:
            pieces.append(text[start:end])
            start = max(start, end)
        return pieces

    def _take(self, settled: Settled) -> None:
        self._texts.append(settled.text)
        self._ends += [span.end for span in settled.spans]
