"""Where a row's kept tokens end, by a search over its logits.

Kept are the first tokens of the order (logit descending, id ascending), so they are those above a
pivot and some of its equals. The pivot lies between the least and the greatest logit. One pass over
the row tries several pivots between them at once and keeps, between the two neighbours where the
measure (a count, or a sum of weights) crosses the target, the actual least and greatest logits:
each pass drops at least one value of the row, mostly all but an eighth of the range, and bfloat16
logits have few values. (Pivots instead of a sort: Tang et al. 2018's selection on GPUs, and
"Qrita", arXiv:2602.01518.)
"""

from __future__ import annotations

import triton
import triton.language as tl


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
def narrow(
    logits,
    adjusted,
    is_adjusted,
    row,
    maxima,
    least,
    greatest,
    likeliest,
    scale,
    target,
    BY_COUNT: tl.constexpr,
    VOCAB: tl.constexpr,
    HAS_ADJUSTED: tl.constexpr,
    BLOCK_V: tl.constexpr,
    NUM_PIVOTS: tl.constexpr,
):
    """The largest logit p such that tokens of at least p measure `target`, and what those above it
    measure: less than that. Both `least` and `greatest` are logits of the row, with p between them.

    `maxima` points to the largest logit of each chunk of BLOCK_V: chunks below `least` are skipped.
    """
    NUM_CHUNKS: tl.constexpr = (VOCAB + BLOCK_V - 1) // BLOCK_V
    measured_above = 0.0
    while least < greatest:
        step = greatest / NUM_PIVOTS - least / NUM_PIVOTS
        pivots = least + step * tl.arange(0, NUM_PIVOTS).to(tl.float32)  # the first is `least`
        measures = tl.zeros([NUM_PIVOTS, BLOCK_V], tl.float32)
        above = tl.full([NUM_PIVOTS, BLOCK_V], float("inf"), tl.float32)
        below = tl.full([NUM_PIVOTS, BLOCK_V], float("-inf"), tl.float32)
        for chunk in range(NUM_CHUNKS):
            if tl.load(maxima + chunk) >= least:
                ids = chunk * BLOCK_V + tl.arange(0, BLOCK_V)
                x, _ = load_logits(logits, adjusted, is_adjusted, row, ids, VOCAB, HAS_ADJUSTED)
                if BY_COUNT:
                    weights = tl.full([BLOCK_V], 1.0, tl.float32)
                else:
                    weights = row_weights(x, likeliest, scale)
                x = x[None, :]
                is_above = x > pivots[:, None]
                measures += tl.where(is_above, weights[None, :], 0.0)
                above = tl.minimum(above, tl.where(is_above, x, float("inf")))
                below = tl.maximum(below, tl.where(is_above, float("-inf"), x))
        measure = tl.sum(measures, axis=1)
        is_enough = measure >= target
        lowest_above = tl.where(is_enough, tl.min(above, axis=1), float("-inf"))
        highest_below = tl.where(is_enough, float("inf"), tl.max(below, axis=1))
        least = tl.maximum(least, tl.max(lowest_above, axis=0))
        greatest = tl.minimum(greatest, tl.min(highest_below, axis=0))
        measured = tl.max(tl.where(is_enough, 0.0, measure), axis=0)
        measured_above = tl.maximum(measured_above, measured)
    return greatest, measured_above


@triton.jit
def kept_weights(
    logits,
    adjusted,
    is_adjusted,
    row,
    maxima,
    pivot,
    ties,
    floor,
    likeliest,
    scale,
    VOCAB: tl.constexpr,
    HAS_ADJUSTED: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Of each chunk, [BLOCK_C]: the weights kept, and how many equals of the pivot came before it.

    Kept are the logits above `pivot` and the first `ties` of its equals, if they weigh `floor`.
    """
    NUM_CHUNKS: tl.constexpr = (VOCAB + BLOCK_V - 1) // BLOCK_V
    chunks = tl.arange(0, BLOCK_C)
    weights = tl.zeros([BLOCK_C], tl.float32)
    ties_before = tl.zeros([BLOCK_C], tl.int32)
    seen = tl.zeros([], tl.int32)
    weight_of_tie = row_weights(pivot, likeliest, scale)
    weight_of_tie = tl.where(weight_of_tie >= floor, weight_of_tie, 0.0)
    for chunk in range(NUM_CHUNKS):
        if tl.load(maxima + chunk) >= pivot:
            ids = chunk * BLOCK_V + tl.arange(0, BLOCK_V)
            x, _ = load_logits(logits, adjusted, is_adjusted, row, ids, VOCAB, HAS_ADJUSTED)
            in_chunk = row_weights(x, likeliest, scale)
            is_kept = (x > pivot) & (in_chunk >= floor)
            num_ties = tl.sum((x == pivot).to(tl.int32), axis=0)
            num_kept = tl.minimum(num_ties, tl.maximum(ties - seen, 0))
            weight = tl.sum(tl.where(is_kept, in_chunk, 0.0), axis=0)
            weight += num_kept.to(tl.float32) * weight_of_tie
            weights = tl.where(chunks == chunk, weight, weights)
            ties_before = tl.where(chunks == chunk, seen, ties_before)
            seen += num_ties
    return weights, ties_before
