"""What a client hears of a token's probability."""

from __future__ import annotations

from typing import NamedTuple


class TokenLogprob(NamedTuple):
    """Natural logarithms: of a sampled token's probability, and of the likeliest, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...]  # (token id, its own)
