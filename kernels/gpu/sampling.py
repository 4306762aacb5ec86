"""Sampling, without a sort: greedy, temperature, top-k, top-p, min-p.

Two launches. The first reads the logits once, in chunks of CHUNK ids: the likeliest of each and its
weight at the row's temperature. The second has one program a row: it finds the likeliest of all
and, where a row drops tokens, the logit of the last one kept, by a search over the row (see
`kernels.gpu.sampling_search`); then it inverts the running sum of weights, first over chunks, then
inside the one where the row's uniform number falls.

Nothing else of the batch reaches a row, and no sum depends on how many rows there are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.sampling_search import kept_weights, load_logits, narrow, row_weights
from kernels.reference.logit_rules import Adjusted
from kernels.reference.sampling import GREEDY_TEMPERATURE

CHUNK = 2048  # ids
BAND_LEN = 8192  # logits set aside once a search is down to so few
NUM_WARPS = 8  # that search a row
_GREEDY = tl.constexpr(GREEDY_TEMPERATURE)
_LOG2_E = tl.constexpr(math.log2(math.e))


class ChunkStats(NamedTuple):
    """Of each row and chunk, all [N, num_chunks]; not-a-number counts as -inf."""

    greatest: Tensor  # float32: the largest logit
    best: Tensor  # int32: the lowest id that has it
    least: Tensor  # float32: the smallest finite logit, +inf if none is
    weight: Tensor  # float32: the sum of exp((logit - greatest) / temperature)
    broken: Tensor  # int32: 1 if a logit is NaN or +inf


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seed: Tensor,
    choice: Tensor,
    position: Tensor,
    min_p: Tensor | None = None,
    *,
    rows: Tensor | None = None,
    adjusted: Adjusted | None = None,
    is_broken: Tensor | None = None,
) -> Tensor:
    """One token id a row, int64 [N], from contiguous `logits` [N, vocab].

    Of each row, all [N]: `temperature` float32 (0: greedy), `top_k` (0 or >= vocab: off), `top_p`
    float32 (1: off), `seed` int64, `choice`, the absolute `position` that the token will have, and
    `min_p` float32 (0: off; at most 1). With `rows` [N] all of these but `position` are by
    table_idx, and row i is that of `rows[i]`.

    Top-k comes first, top-p is taken of the probability it leaves, min-p drops what is less likely
    than that share of the likeliest, and at least one token stays. Of equal logits the higher id is
    dropped first. Rows that `adjusted` has are read there. `is_broken` bool [N] is set to whether a
    row's logits had a NaN or +inf, or nothing finite: its id means nothing, but is of the
    vocabulary.
    """
    num_rows, vocab = logits.shape
    assert logits.is_contiguous()
    ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows == 0:
        return ids
    num_chunks = triton.cdiv(vocab, CHUNK)
    shape = num_rows, num_chunks
    stats = ChunkStats(
        *(
            torch.empty(shape, dtype=dtype, device=logits.device)
            for dtype in (torch.float32, torch.int32, torch.float32, torch.float32, torch.int32)
        )
    )
    source = (logits, *adjusted) if adjusted is not None else (logits, None, None)
    chunk_kernel[(num_chunks, num_rows)](
        *stats, *source, temperature, rows, vocab, adjusted is not None, CHUNK, num_warps=4
    )
    bands = torch.empty(num_rows, BAND_LEN, dtype=torch.float32, device=logits.device)
    choose_kernel[(num_rows,)](
        ids, is_broken, bands, *stats, *source, temperature, top_k, top_p, min_p, seed, choice,
        position, rows, vocab, adjusted is not None, CHUNK, triton.next_power_of_2(num_chunks),
        BAND_LEN, num_warps=NUM_WARPS,
    )  # fmt: skip
    return ids


@triton.jit
def chunk_kernel(
    greatest_of,
    best_of,
    least_of,
    weight_of,
    broken_of,
    logits,
    adjusted,
    is_adjusted,
    temperature,
    rows,
    VOCAB: tl.constexpr,
    HAS_ADJUSTED: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Program (chunk, row) fills one entry of each of `ChunkStats`."""
    chunk = tl.program_id(0)
    row = tl.program_id(1)
    out = row * tl.num_programs(0) + chunk
    state = row
    if rows is not None:
        state = tl.load(rows + row)
    ids = chunk * BLOCK_V + tl.arange(0, BLOCK_V)
    x, is_bad = load_logits(logits, adjusted, is_adjusted, row, ids, VOCAB, HAS_ADJUSTED)
    greatest = tl.max(x, axis=0)
    scale = _LOG2_E / tl.maximum(tl.load(temperature + state), _GREEDY)
    weights = tl.where(x == float("-inf"), 0.0, tl.exp2((x - greatest) * scale))
    tl.store(greatest_of + out, greatest)
    tl.store(best_of + out, tl.min(tl.where(x == greatest, ids, VOCAB), axis=0))
    tl.store(least_of + out, tl.min(tl.where(x == float("-inf"), float("inf"), x), axis=0))
    tl.store(weight_of + out, tl.sum(weights, axis=0))
    tl.store(broken_of + out, tl.max(is_bad.to(tl.int32), axis=0))


@triton.jit
def choose_kernel(
    out,
    is_broken,
    bands,
    greatest_of,
    best_of,
    least_of,
    weight_of,
    broken_of,
    logits,
    adjusted,
    is_adjusted,
    temperature,
    top_k,
    top_p,
    min_p,
    seed,
    choice,
    position,
    rows,
    VOCAB: tl.constexpr,
    HAS_ADJUSTED: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BAND_LEN: tl.constexpr,
):
    """Program `row` draws one id; BLOCK_C covers the row's chunks of BLOCK_V ids."""
    NUM_CHUNKS: tl.constexpr = (VOCAB + BLOCK_V - 1) // BLOCK_V
    row = tl.program_id(0)
    state = row
    if rows is not None:
        state = tl.load(rows + row)
    chunks = tl.arange(0, BLOCK_C)
    exists = chunks < NUM_CHUNKS
    first = row * NUM_CHUNKS
    greatests = tl.load(greatest_of + first + chunks, mask=exists, other=float("-inf"))
    bests = tl.load(best_of + first + chunks, mask=exists, other=VOCAB)
    greatest = tl.max(greatests, axis=0)
    token = tl.min(tl.where(greatests == greatest, bests, VOCAB), axis=0)
    token = tl.minimum(token, VOCAB - 1)
    if is_broken is not None:
        broken = tl.max(tl.load(broken_of + first + chunks, mask=exists, other=0), axis=0)
        nothing = greatest == float("-inf")
        tl.store(is_broken + row, (broken != 0) | nothing)
    warmth = tl.load(temperature + state)
    limit = tl.load(top_k + state).to(tl.int32)
    if (warmth > _GREEDY) & (limit != 1) & (greatest > float("-inf")):
        scale = _LOG2_E / warmth
        weights = tl.load(weight_of + first + chunks, mask=exists, other=0)
        weights = tl.where(
            greatests == float("-inf"), 0.0, weights * tl.exp2((greatests - greatest) * scale)
        )
        share = tl.load(top_p + state)
        floor = 0.0
        if min_p is not None:
            floor = tl.load(min_p + state)
        has_top_k = (limit > 0) & (limit < VOCAB)
        pivot = float("-inf")  # kept are the logits above it, and of its equals the first `ties`
        ties = tl.full([], VOCAB, tl.int32)
        ties_before = tl.zeros([BLOCK_C], tl.int32)
        if has_top_k | (share < 1) | (floor > 0):
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
        word, _, _, _ = tl.philox(
            tl.load(seed + state),
            tl.load(position + row).to(tl.int32),
            tl.load(choice + state).to(tl.int32),
            tl.zeros([], tl.int32),
            tl.zeros([], tl.int32),
        )
        uniform = (word >> 8).to(tl.float32) * (2.0**-24)
        target = uniform * tl.sum(weights, axis=0)
        running = tl.cumsum(weights, axis=0)
        chunk = tl.min(tl.where((running > target) & (weights > 0), chunks, BLOCK_C), axis=0)
        heaviest = tl.max(tl.where(weights > 0, chunks, 0), axis=0)
        chunk = tl.minimum(chunk, heaviest)  # where rounding lets no running sum pass the target
        target -= tl.sum(tl.where(chunks < chunk, weights, 0.0), axis=0)
        ids = chunk * BLOCK_V + tl.arange(0, BLOCK_V)
        x, _ = load_logits(logits, adjusted, is_adjusted, row, ids, VOCAB, HAS_ADJUSTED)
        in_chunk = row_weights(x, greatest, scale)
        is_tie = x == pivot
        rank = tl.cumsum(is_tie.to(tl.int32), axis=0)
        rank += tl.sum(tl.where(chunks == chunk, ties_before, 0), axis=0)
        is_kept = ((x > pivot) | (is_tie & (rank <= ties))) & (in_chunk >= floor) & (in_chunk > 0)
        in_chunk = tl.where(is_kept, in_chunk, 0.0)
        passes = (tl.cumsum(in_chunk, axis=0) > target) & is_kept
        token = tl.min(tl.where(passes, ids, VOCAB), axis=0)
        token = tl.minimum(token, tl.max(tl.where(is_kept, ids, 0), axis=0))
    tl.store(out + row, token.to(tl.int64))
