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

from kernels.gpu.launch import begin_program
from kernels.gpu.logits import COLD, LOG2_E, chunk_weights, load_logits, row_weights


@triton.jit
def search_kernel(
    pivot_of,
    ties_of,
    ties_before_of,
    weight_of,
    bands,
    greatest_of,
    least_of,
    logits,
    adjusted,
    is_adjusted,
    temperature,
    top_k,
    top_p,
    min_p,
    rows,
    VOCAB: tl.constexpr,
    HAS_ADJUSTED: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BAND_LEN: tl.constexpr,
):
    """Program `row` finds the row's pivot: -inf, and no more, where the row drops no token.

    Else it leaves in `weight_of` what is kept of each chunk, in units of the likeliest token, in
    `ties_of` how many equals of the pivot are, and in `ties_before_of` how many of them came before
    each chunk. BLOCK_C covers the row's chunks of BLOCK_V ids.
    """
    begin_program()
    NUM_CHUNKS: tl.constexpr = (VOCAB + BLOCK_V - 1) // BLOCK_V
    row = tl.program_id(0)
    state = row
    if rows is not None:
        state = tl.load(rows + row)
    warmth = tl.load(temperature + state)
    limit = tl.load(top_k + state).to(tl.int32)
    share = tl.load(top_p + state)
    floor = 0.0
    if min_p is not None:
        floor = tl.load(min_p + state)
    has_top_k = (limit > 0) & (limit < VOCAB)
    pivot = float("-inf")
    if (warmth > COLD) & (limit != 1) & (has_top_k | (share < 1) | (floor > 0)):
        chunks = tl.arange(0, BLOCK_C)
        exists = chunks < NUM_CHUNKS
        first = row * NUM_CHUNKS
        greatests = tl.load(greatest_of + first + chunks, mask=exists, other=float("-inf"))
        greatest = tl.max(greatests, axis=0)
        if greatest > float("-inf"):
            scale = LOG2_E / warmth
            ties = tl.full([], VOCAB, tl.int32)
            maxima, band = greatest_of + first, bands + row * BAND_LEN
            leasts = tl.load(least_of + first + chunks, mask=exists, other=float("inf"))
            pivot = tl.min(leasts, axis=0)
            if has_top_k:
                if limit <= NUM_CHUNKS:  # as many tokens are at least the least of the maxima
                    maxima_of_all = tl.where(exists, greatests, float("inf"))
                    pivot = tl.maximum(pivot, tl.min(maxima_of_all, axis=0))
                pivot, above = narrow(
                    logits, adjusted, is_adjusted, row, maxima, band, pivot, greatest, greatest,
                    scale, limit.to(tl.float32), True,
                    VOCAB, HAS_ADJUSTED, BLOCK_V, BAND_LEN,
                )  # fmt: skip
                ties = limit - above.to(tl.int32)
            if share < 1:
                weights = chunk_weights(weight_of + first, greatests, chunks, exists, scale)
                if has_top_k:
                    weights, ties_before = kept_weights(
                        logits, adjusted, is_adjusted, row, maxima, pivot, ties, 0.0, greatest,
                        scale, VOCAB, HAS_ADJUSTED, BLOCK_V, BLOCK_C,
                    )  # fmt: skip
                total = tl.sum(weights, axis=0)
                # All tokens lighter than this weigh less than top-p drops; 1 % is for rounding.
                light = 0.99 * (1 - share) * total / VOCAB
                least = tl.maximum(pivot, tl.minimum(greatest, greatest + tl.log2(light) / scale))
                last_of_top_k = pivot
                pivot, above = narrow(
                    logits, adjusted, is_adjusted, row, maxima, band, least, greatest, greatest,
                    scale, share * total, False,
                    VOCAB, HAS_ADJUSTED, BLOCK_V, BAND_LEN,
                )  # fmt: skip
                needed = tl.ceil((share * total - above) / row_weights(pivot, greatest, scale))
                needed = tl.minimum(tl.maximum(needed, 1.0), VOCAB * 1.0).to(tl.int32)
                ties = tl.where(pivot > last_of_top_k, needed, tl.minimum(needed, ties))
            weights, ties_before = kept_weights(
                logits, adjusted, is_adjusted, row, maxima, pivot, ties, floor, greatest,
                scale, VOCAB, HAS_ADJUSTED, BLOCK_V, BLOCK_C,
            )  # fmt: skip
            tl.store(weight_of + first + chunks, weights, mask=exists)
            tl.store(ties_before_of + first + chunks, ties_before, mask=exists)
            tl.store(ties_of + row, ties)
    tl.store(pivot_of + row, pivot)


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
