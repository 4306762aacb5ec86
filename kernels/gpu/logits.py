"""Reading a row's logits, wherever they are and whatever they hold, and what they weigh."""

from __future__ import annotations

import math

import triton
import triton.language as tl

from kernels.reference.sampling import GREEDY_TEMPERATURE

COLD = tl.constexpr(GREEDY_TEMPERATURE)
LOG2_E = tl.constexpr(math.log2(math.e))


@triton.jit
def load_logits(
    logits, adjusted, is_adjusted, row, ids, VOCAB: tl.constexpr, HAS_ADJUSTED: tl.constexpr
):
    """The row's logits at `ids`, float32, and which of them are no number.

    NaN becomes -inf, as past the vocabulary; +inf becomes the largest finite number.
    """
    mask = ids < VOCAB
    first = row.to(tl.int64) * VOCAB
    if HAS_ADJUSTED:
        if tl.load(is_adjusted + row) != 0:
            x = tl.load(adjusted + first + ids, mask=mask, other=float("-inf"))
        else:
            x = tl.load(logits + first + ids, mask=mask, other=float("-inf")).to(tl.float32)
    else:
        x = tl.load(logits + first + ids, mask=mask, other=float("-inf")).to(tl.float32)
    is_bad = (x != x) | (x == float("inf"))
    x = tl.where(x != x, float("-inf"), x)
    return tl.where(x == float("inf"), 3.4028234663852886e38, x), is_bad


@triton.jit
def row_weights(x, greatest, scale):
    """`2 ** ((x - greatest) * scale)`: 1 at the likeliest; `greatest` is finite."""
    return tl.exp2((x - greatest) * scale)


@triton.jit
def chunk_weights(weight_of_row, greatests, chunks, exists, scale):
    """The weights of a row's chunks in units of its likeliest token, from units of their own."""
    weights = tl.load(weight_of_row + chunks, mask=exists, other=0)
    shares = tl.exp2((greatests - tl.max(greatests, axis=0)) * scale)
    return tl.where(greatests == float("-inf"), 0.0, weights * shares)
