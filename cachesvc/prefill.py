"""How the tokens of a step are shared among prompts."""

from __future__ import annotations

from typing import NamedTuple


class Chunk(NamedTuple):
    """What a row computes of its prompt in a step, in tokens."""

    table_idx: int
    extend_len: int


class PrefillBudget:
    """The prompt tokens of one step, given out in the order of asking.

    A prompt with more than `long_len` tokens to go is a long one. Half of the budget is for as many
    long ones as are allowed at once, each with its share; what is left when everybody asked is for
    them too. So a short prompt is not held up by long ones, nor one of those by another.
    """

    def __init__(self, budget_tokens: int, long_len: int, max_long: int) -> None:
        self.left = budget_tokens
        self._long_share = max(budget_tokens // 2 // max_long, 1)
        self._long_len = long_len
        self._max_long = max_long
        self._num_long = 0
        self._asked: list[tuple[int, int, int]] = []  # table_idx, tokens to go, given

    def admits(self, tokens_to_go: int) -> bool:
        """Whether another prompt may begin: not one long one too many."""
        return tokens_to_go <= self._long_len or self._num_long < self._max_long

    def ask(self, table_idx: int, tokens_to_go: int) -> None:
        """Give a row what it gets."""
        given = min(tokens_to_go, self.left)
        if tokens_to_go > self._long_len:
            given = min(given, self._long_share)
            self._num_long += 1
        self.left -= given
        self._asked.append((table_idx, tokens_to_go, given))

    def chunks(self) -> list[Chunk]:
        """What each row computes, in the order of asking, with what nobody else wanted."""
        chunks: list[Chunk] = []
        for table_idx, tokens_to_go, given in self._asked:
            more = min(tokens_to_go - given, self.left)
            self.left -= more
            if given + more:
                chunks.append(Chunk(table_idx, given + more))
        return chunks
