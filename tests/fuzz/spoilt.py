"""Good bytes made bad, whatever they say."""

from __future__ import annotations

import random


def garbage(rng: random.Random, good: bytes) -> bytes:
    """Nothing of them is left."""
    return rng.randbytes(rng.randrange(200))


def cut(rng: random.Random, good: bytes) -> bytes:
    """Their beginning."""
    return good[: rng.randrange(len(good))]


def flipped(rng: random.Random, good: bytes) -> bytes:
    """A few bits turned over."""
    turned = bytearray(good)
    for _ in range(rng.randrange(1, 5)):
        turned[rng.randrange(len(turned))] ^= 1 << rng.randrange(8)
    return bytes(turned)


SPOILS = {"garbage": garbage, "cut": cut, "flipped": flipped}
