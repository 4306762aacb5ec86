"""Which ids a row's prompt has, and how often each was sampled: what penalties look at."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import OVERLAP, begin_program

BLOCK_N = 256  # ids a program


def mark_prompt(prompt_words: Tensor, rows: Tensor, token_ids: Tensor) -> None:
    """Sets bit `token_ids[i] % 32` of `prompt_words[rows[i], token_ids[i] // 32]`, in place.

    `prompt_words` is int32 [R, ceil(vocab / 32)]; `rows` and `token_ids` are integer [n].
    """
    if n := len(rows):
        mark_kernel[(triton.cdiv(n, BLOCK_N),)](
            prompt_words,
            rows,
            token_ids,
            n,
            prompt_words.stride(0),
            BLOCK_N,
            num_warps=4,
            **OVERLAP,
        )


def count_output(output_counts: Tensor, rows: Tensor, token_ids: Tensor) -> None:
    """Adds 1 to `output_counts[rows[i], token_ids[i]]`, in place; `rows` are distinct.

    `output_counts` is int16 or int32 [R, vocab]; `rows` and `token_ids` are integer [n].
    """
    if n := len(rows):
        count_kernel[(triton.cdiv(n, BLOCK_N),)](
            output_counts,
            rows,
            token_ids,
            n,
            output_counts.stride(0),
            BLOCK_N,
            num_warps=4,
            **OVERLAP,
        )


@triton.jit(do_not_specialize=["n"])
def mark_kernel(prompt_words, rows, token_ids, n, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr):
    begin_program()
    i = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = i < n
    row = tl.load(rows + i, mask=mask, other=0).to(tl.int64)
    token = tl.load(token_ids + i, mask=mask, other=0).to(tl.int32)
    bit = tl.full([BLOCK_N], 1, tl.int32) << (token % 32)
    tl.atomic_or(prompt_words + row * WIDTH + token // 32, bit, mask=mask, sem="relaxed")


@triton.jit(do_not_specialize=["n"])
def count_kernel(output_counts, rows, token_ids, n, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr):
    begin_program()
    i = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = i < n
    row = tl.load(rows + i, mask=mask, other=0).to(tl.int64)
    at = output_counts + row * WIDTH + tl.load(token_ids + i, mask=mask, other=0)
    tl.store(at, tl.load(at, mask=mask, other=0) + 1, mask=mask)
