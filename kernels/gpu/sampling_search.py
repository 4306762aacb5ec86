"""Where a row's kept tokens end, by a search over its logits.

Kept are the first tokens of the order (logit descending, id ascending), so they are those above a
pivot and some of its equals. The pivot lies in a band of logits, at first all that it can be. A
pass over the row measures (counts, or sums the weights of) what is above each of four pivots spread
over the band, and the quarter where the measure crosses the target is the next band. As soon as
BAND_LEN holds a band, a pass leaves it there, and the passes after it read that instead of the row.
A band of one value ends the search: exact, whatever the logits are. (Pivots instead of a sort, and
outliers set aside: "Qrita", arXiv:2602.01518.)
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
    band,
    least,
    greatest,
    likeliest,
    scale,
    target,
    BY_COUNT: tl.constexpr,
    VOCAB: tl.constexpr,
    HAS_ADJUSTED: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BAND_LEN: tl.constexpr,
):
    """The largest logit p such that tokens of at least p measure `target`, and what those above it
    measure, which is less than that. It is known that `least` <= p <= `greatest`.

    `maxima` points to the largest logit of each chunk of BLOCK_V: chunks below the band are
    skipped. `band` points to room for BAND_LEN logits.
    """
    NUM_CHUNKS: tl.constexpr = (VOCAB + BLOCK_V - 1) // BLOCK_V
    lane = tl.arange(0, BLOCK_V)
    measured_above = 0.0  # what is above `greatest`
    floor = float("-inf")  # below all of the band
    num_in_band = tl.full([], -1, tl.int32)  # how many logits `band` has: none yet
    passes = 0
    while (least < greatest) & (passes < 200):  # denormal numbers may be too close to tell apart
        passes += 1
        step = greatest / 4 - least / 4  # their difference may be no finite number
        p0, p1, p2, p3 = least, least + step, least + 2 * step, least + 3 * step
        m0 = tl.zeros([BLOCK_V], tl.float32)
        m1, m2, m3 = m0, m0, m0
        lowest = tl.full([BLOCK_V], float("inf"), tl.float32)
        highest = tl.full([BLOCK_V], float("-inf"), tl.float32)
        if num_in_band < 0:
            found = tl.zeros([], tl.int32)
            for chunk in range(NUM_CHUNKS):
                if tl.load(maxima + chunk) >= least:
                    ids = chunk * BLOCK_V + lane
                    x, _ = load_logits(logits, adjusted, is_adjusted, row, ids, VOCAB, HAS_ADJUSTED)
                    is_in = (x >= least) & (x > floor) & (x <= greatest)
                    weights = _band_weights(x, is_in, likeliest, scale, BY_COUNT)
                    m0 += tl.where(x > p0, weights, 0.0)
                    m1 += tl.where(x > p1, weights, 0.0)
                    m2 += tl.where(x > p2, weights, 0.0)
                    m3 += tl.where(x > p3, weights, 0.0)
                    lowest = tl.minimum(lowest, tl.where(is_in, x, float("inf")))
                    highest = tl.maximum(highest, tl.where(is_in, x, float("-inf")))
                    if found <= BAND_LEN:
                        ones = is_in.to(tl.int32)
                        at = found + tl.cumsum(ones, axis=0) - ones
                        tl.store(band + at, x, mask=is_in & (at < BAND_LEN))
                        found += tl.sum(ones, axis=0)
            if found <= BAND_LEN:
                num_in_band = found
            tl.debug_barrier()  # the next pass reads what other threads stored
        else:
            for first in range(0, num_in_band, BLOCK_V):
                mask = first + lane < num_in_band
                x = tl.load(band + first + lane, mask=mask, other=float("-inf"))
                is_in = (x >= least) & (x > floor) & (x <= greatest)
                weights = _band_weights(x, is_in, likeliest, scale, BY_COUNT)
                m0 += tl.where(x > p0, weights, 0.0)
                m1 += tl.where(x > p1, weights, 0.0)
                m2 += tl.where(x > p2, weights, 0.0)
                m3 += tl.where(x > p3, weights, 0.0)
                lowest = tl.minimum(lowest, tl.where(is_in, x, float("inf")))
                highest = tl.maximum(highest, tl.where(is_in, x, float("-inf")))
        low = tl.min(lowest, axis=0)
        high = tl.max(highest, axis=0)
        if low >= high:  # one value, or none for all that rounding knows
            greatest = tl.where(low == high, high, greatest)
            least = greatest
        else:
            m_0 = measured_above + tl.sum(m0, axis=0)
            m_1 = measured_above + tl.sum(m1, axis=0)
            m_2 = measured_above + tl.sum(m2, axis=0)
            m_3 = measured_above + tl.sum(m3, axis=0)
            # What is above the pivots shrinks from p0 to p3: the last that leaves enough is below
            # the band, the first that leaves too little bounds it.
            floor = tl.where(m_0 >= target, p0, floor)
            floor = tl.where(m_1 >= target, p1, floor)
            floor = tl.where(m_2 >= target, p2, floor)
            floor = tl.where(m_3 >= target, p3, floor)
            bound = tl.where(m_3 < target, p3, greatest)
            bound = tl.where(m_2 < target, p2, bound)
            bound = tl.where(m_1 < target, p1, bound)
            bound = tl.where(m_0 < target, p0, bound)
            measured_above = tl.where(m_3 < target, m_3, measured_above)
            measured_above = tl.where(m_2 < target, m_2, measured_above)
            measured_above = tl.where(m_1 < target, m_1, measured_above)
            measured_above = tl.where(m_0 < target, m_0, measured_above)
            least = tl.maximum(low, floor)
            greatest = tl.minimum(tl.minimum(greatest, high), bound)
    return greatest, measured_above


@triton.jit
def _band_weights(x, is_in, likeliest, scale, BY_COUNT: tl.constexpr):
    """What each logit `x` of the band adds to a measure."""
    if BY_COUNT:
        return is_in.to(tl.float32)
    else:  # noqa: RET505  only one of the two is compiled
        return tl.where(is_in, row_weights(x, likeliest, scale), 0.0)


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
