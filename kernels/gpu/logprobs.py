"""Log probabilities of the model's own distribution: at temperature 1, before any rule.

Two launches: each chunk of a row leaves its likeliest ids and its sum, then a program a row merges
them. A row that wants none costs the reading of its flag.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import OVERLAP, begin_program
from kernels.gpu.logits import load_logits
from kernels.reference.logprobs import Logprobs

CHUNK = 4096  # ids


def logprobs(logits: Tensor, token_ids: Tensor, wanted: Tensor, num_top: int) -> Logprobs:
    """Of contiguous `logits` [N, vocab]: `token_ids` [N], and the `num_top` <= vocab likeliest, of
    the rows `wanted` (bool [N]); NaN, and id 0, in the others. Of equal logits the lower id comes
    first; an id whose probability is 0 means nothing.
    """
    num_rows, vocab = logits.shape
    assert logits.is_contiguous()
    device, num_chunks = logits.device, triton.cdiv(vocab, CHUNK)
    floats, num_best = torch.float32, max(1, num_top)
    out = Logprobs(
        torch.empty(num_rows, dtype=floats, device=device),
        torch.empty(num_rows, num_top, dtype=torch.int64, device=device),
        torch.empty(num_rows, num_top, dtype=floats, device=device),
    )
    best = torch.empty(num_rows, num_chunks, num_best, dtype=floats, device=device)
    best_ids = torch.empty(num_rows, num_chunks, num_best, dtype=torch.int32, device=device)
    weight = torch.empty(num_rows, num_chunks, dtype=floats, device=device)
    if num_rows:
        best_kernel[(num_chunks, num_rows)](
            best,
            best_ids,
            weight,
            logits,
            wanted,
            vocab,
            num_best,
            CHUNK,
            num_warps=8,
            **OVERLAP,
        )
        merge_kernel[(num_rows,)](
            *out, best, best_ids, weight, logits, token_ids, wanted, vocab, num_top, num_best,
            num_chunks, triton.next_power_of_2(num_chunks),
            triton.next_power_of_2(num_chunks * num_best), num_warps=8, **OVERLAP,
        )  # fmt: skip
    return out


@triton.jit
def best_kernel(
    best,
    best_ids,
    weight_of,
    logits,
    wanted,
    VOCAB: tl.constexpr,
    NUM_BEST: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Program (chunk, row): its NUM_BEST likeliest, and the sum of exp(logit - best)."""
    begin_program()
    row = tl.program_id(1)
    if tl.load(wanted + row) != 0:
        out = row * tl.num_programs(0) + tl.program_id(0)
        ids = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
        x, _ = load_logits(logits, None, None, row, ids, VOCAB, False)
        greatest = tl.max(x, axis=0)
        weights = tl.where(x == float("-inf"), 0.0, tl.exp(x - greatest))
        tl.store(weight_of + out, tl.sum(weights, axis=0))
        for i in range(NUM_BEST):
            greatest = tl.max(x, axis=0)
            at = tl.min(tl.where(x == greatest, ids, VOCAB - 1), axis=0)
            tl.store(best + out * NUM_BEST + i, greatest)
            tl.store(best_ids + out * NUM_BEST + i, at)
            x = tl.where(ids == at, float("-inf"), x)


@triton.jit
def merge_kernel(
    chosen,
    top_ids,
    top,
    best,
    best_ids,
    weight_of,
    logits,
    token_ids,
    wanted,
    VOCAB: tl.constexpr,
    NUM_TOP: tl.constexpr,
    NUM_BEST: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    begin_program()
    row = tl.program_id(0)
    if tl.load(wanted + row) != 0:
        chunks = tl.arange(0, BLOCK_C)
        exists = chunks < NUM_CHUNKS
        of_row = row * NUM_CHUNKS + chunks
        greatests = tl.load(best + of_row * NUM_BEST, mask=exists, other=float("-inf"))
        weights = tl.load(weight_of + of_row, mask=exists, other=0)
        greatest = tl.max(greatests, axis=0)
        weights = tl.where(weights > 0, weights * tl.exp(greatests - greatest), 0.0)
        log_total = greatest + tl.log(tl.sum(weights, axis=0))
        token = tl.load(token_ids + row).to(tl.int64)
        x, _ = load_logits(logits, None, None, row, token, VOCAB, False)
        tl.store(chosen + row, x - log_total)
        n = tl.arange(0, BLOCK_B)
        mask = n < NUM_CHUNKS * NUM_BEST
        first = row * (NUM_CHUNKS * NUM_BEST)
        x = tl.load(best + first + n, mask=mask, other=float("-inf"))
        ids = tl.load(best_ids + first + n, mask=mask, other=VOCAB - 1)
        for i in range(NUM_TOP):
            greatest = tl.max(x, axis=0)
            at = tl.min(tl.where(x == greatest, ids, VOCAB - 1), axis=0)
            tl.store(top + row * NUM_TOP + i, greatest - log_total)
            tl.store(top_ids + row * NUM_TOP + i, at.to(tl.int64))
            x = tl.where(ids == at, float("-inf"), x)
    else:
        tl.store(chosen + row, float("nan"))
        for i in range(NUM_TOP):
            tl.store(top + row * NUM_TOP + i, float("nan"))
            tl.store(top_ids + row * NUM_TOP + i, tl.zeros([], tl.int64))
