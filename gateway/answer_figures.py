"""How long an answer took, in a line for a person."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class Answered(NamedTuple):
    """An answer ended by itself."""

    prompt_tokens: int
    completion_tokens: int
    is_cut: bool = False  # at max_tokens, max_seq_len or the end of the page pool


class AnswerFigures:
    """Begins when it is made."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = clock()
        self._first_s: float | None = None

    def note_text(self) -> None:
        """Text came."""
        if self._first_s is None:
            self._first_s = self._clock()

    def of(self, answered: Answered) -> str:
        """Of the answer that ends now. Tokens a second count from the first one on, where there are
        two.
        """
        ended_s = self._clock()
        first_s = ended_s if self._first_s is None else self._first_s
        decode_s, decoded = ended_s - first_s, answered.completion_tokens - 1
        rate = f"{decoded / decode_s:.1f} tokens/s" if decoded > 0 and decode_s > 0 else "one token"
        return (
            f"{answered.prompt_tokens} tokens in, {answered.completion_tokens} out, "
            f"first after {(first_s - self._began_s) * 1000:.0f} ms, then {rate}"
        )
