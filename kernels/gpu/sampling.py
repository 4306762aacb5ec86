"""Sampling, without a sort: greedy, temperature, top-k, top-p, min-p.

Three launches. The first reads the logits once, in chunks of CHUNK ids: the likeliest of each and
its weight at the row's temperature. The second is for rows that drop tokens: it searches the row
for the last one kept (`kernels.gpu.sampling_search`) and weighs what is kept of each chunk; of
other rows it reads three parameters. The third inverts the running sum of weights, first over
chunks, then inside the one where the row's uniform number falls.

Nothing else of the batch reaches a row, and no sum depends on how many rows there are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import OVERLAP, begin_program
from kernels.gpu.logits import COLD, LOG2_E, chunk_weights, load_logits, row_weights
from kernels.gpu.sampling_search import search_kernel
from kernels.reference.logit_rules import Adjusted

CHUNK = 2048  # ids
BAND_LEN = 8192  # logits set aside once a search is down to so few
NUM_WARPS = 8  # that search a row


class ChunkStats(NamedTuple):
    """Of each row and chunk, all [N, num_chunks]; not-a-number counts as -inf."""

    greatest: Tensor  # float32: the largest logit
    best: Tensor  # int32: the lowest id that has it
    least: Tensor  # float32: the smallest finite logit, +inf if none is
    weight: Tensor  # float32: the sum of exp((logit - greatest) / temperature); later, what is kept
    broken: Tensor  # int32: 1 if a logit is NaN or +inf


class Kept(NamedTuple):
    """Which tokens of a row stay: those above a pivot, and the first of its equals."""

    pivot: Tensor  # float32 [N]: a logit; -inf where all stay, and the others mean nothing
    ties: Tensor  # int32 [N]: how many equals of the pivot stay
    ties_before: Tensor  # int32 [N, num_chunks]: how many equals come before each chunk


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
    stats, kept = _empty_stats(num_rows, num_chunks, logits.device)
    bands = torch.empty(num_rows, BAND_LEN, dtype=torch.float32, device=logits.device)
    source = (logits, *adjusted) if adjusted is not None else (logits, None, None)
    shape = vocab, adjusted is not None, CHUNK
    chunk_kernel[(num_chunks, num_rows)](
        *stats, *source, temperature, rows, *shape, num_warps=4, **OVERLAP
    )
    padded_chunks = triton.next_power_of_2(num_chunks)
    search_kernel[(num_rows,)](
        *kept, stats.weight, bands, stats.greatest, stats.least, *source, temperature, top_k,
        top_p, min_p, rows, *shape, padded_chunks, BAND_LEN, num_warps=NUM_WARPS, **OVERLAP,
    )  # fmt: skip
    draw_kernel[(num_rows,)](
        ids, is_broken, stats.greatest, stats.best, stats.weight, stats.broken, *kept, *source,
        temperature, top_k, min_p, seed, choice, position, rows, *shape, padded_chunks,
        num_warps=4, **OVERLAP,
    )  # fmt: skip
    return ids


def _empty_stats(num_rows: int, num_chunks: int, device: torch.device) -> tuple[ChunkStats, Kept]:
    def floats(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    def ints(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=device)

    of_chunk = num_rows, num_chunks
    return (
        ChunkStats(
            floats(*of_chunk), ints(*of_chunk), floats(*of_chunk), floats(*of_chunk),
            ints(*of_chunk),
        ),
        Kept(floats(num_rows), ints(num_rows), ints(*of_chunk)),
    )  # fmt: skip


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
    begin_program()
    chunk = tl.program_id(0)
    row = tl.program_id(1)
    out = row * tl.num_programs(0) + chunk
    state = row
    if rows is not None:
        state = tl.load(rows + row)
    ids = chunk * BLOCK_V + tl.arange(0, BLOCK_V)
    x, is_bad = load_logits(logits, adjusted, is_adjusted, row, ids, VOCAB, HAS_ADJUSTED)
    greatest = tl.max(x, axis=0)
    scale = LOG2_E / tl.maximum(tl.load(temperature + state), COLD)
    weights = tl.where(x == float("-inf"), 0.0, tl.exp2((x - greatest) * scale))
    tl.store(greatest_of + out, greatest)
    tl.store(best_of + out, tl.min(tl.where(x == greatest, ids, VOCAB), axis=0))
    tl.store(least_of + out, tl.min(tl.where(x == float("-inf"), float("inf"), x), axis=0))
    tl.store(weight_of + out, tl.sum(weights, axis=0))
    tl.store(broken_of + out, tl.max(is_bad.to(tl.int32), axis=0))


@triton.jit
def draw_kernel(
    out,
    is_broken,
    greatest_of,
    best_of,
    weight_of,
    broken_of,
    pivot_of,
    ties_of,
    ties_before_of,
    logits,
    adjusted,
    is_adjusted,
    temperature,
    top_k,
    min_p,
    seed,
    choice,
    position,
    rows,
    VOCAB: tl.constexpr,
    HAS_ADJUSTED: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Program `row` draws one id; BLOCK_C covers the row's chunks of BLOCK_V ids."""
    begin_program()
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
    nothing = greatest == float("-inf")
    if is_broken is not None:
        broken = tl.max(tl.load(broken_of + first + chunks, mask=exists, other=0), axis=0)
        tl.store(is_broken + row, (broken != 0) | nothing)
    warmth = tl.load(temperature + state)
    if (warmth > COLD) & (tl.load(top_k + state) != 1) & (greatest > float("-inf")):
        scale = LOG2_E / warmth
        pivot = tl.load(pivot_of + row)
        ties = tl.full([], VOCAB, tl.int32)
        ties_before = tl.zeros([BLOCK_C], tl.int32)
        floor = 0.0
        if pivot > float("-inf"):
            ties = tl.load(ties_of + row)
            ties_before = tl.load(ties_before_of + first + chunks, mask=exists, other=0)
            weights = tl.load(weight_of + first + chunks, mask=exists, other=0)
            if min_p is not None:
                floor = tl.load(min_p + state)
        else:
            weights = chunk_weights(weight_of + first, greatests, chunks, exists, scale)
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
