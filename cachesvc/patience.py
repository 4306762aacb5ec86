"""How long a runner may be silent about plans that it has, by how long plans took lately."""

from __future__ import annotations

GENEROSITY = 4  # times as long as it should take
UNMEASURED_S_PER_TOKEN = 0.05  # before anything was measured: a large model on a CPU
FORGOTTEN_BY = 64  # what a slow step counts beyond a quick one shrinks by this part with each
MOST_BITS = 32  # of a count of tokens


class Patience:
    """Remembers the slowest step lately, apart for each power of two of its tokens: a token of a
    long prefill takes far less than one that is decoded alone.
    """

    def __init__(self, silence_s: float) -> None:
        """`silence_s` is allowed whatever was sent."""
        self._silence_s = silence_s
        self._slowest_us = [0.0] * (MOST_BITS + 1)  # by bit length of the tokens; 0: none seen

    def note(self, tokens: int, step_us: int) -> None:
        """A step of so many tokens took so long."""
        bits = tokens.bit_length()
        slowest_us = self._slowest_us[bits]
        self._slowest_us[bits] = max(step_us, slowest_us - (slowest_us - step_us) / FORGOTTEN_BY)

    def allowed_s(self, tokens: int) -> float:
        """The longest silence, in seconds, while plans of so many tokens are due."""
        return self._silence_s + GENEROSITY * self._expected_s(tokens)

    def _expected_s(self, tokens: int) -> float:
        """By the slowest of the steps up to that many tokens and of the next larger kind; where all
        seen were smaller, as many times longer as it has more tokens.
        """
        slowest_us, largest_bits = 0.0, 0
        for bits, seen_us in enumerate(self._slowest_us):
            if seen_us:
                slowest_us, largest_bits = max(slowest_us, seen_us), bits
                if bits >= tokens.bit_length():
                    return slowest_us / 1e6
        if not largest_bits:
            return tokens * UNMEASURED_S_PER_TOKEN
        return slowest_us / 1e6 * tokens / (1 << largest_bits - 1)
