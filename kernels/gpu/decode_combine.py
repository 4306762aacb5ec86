"""Merging what several workers have of one row, by log-sum-exps in powers of two."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.gpu.launch import let_next_come, wait_for_previous


@triton.jit
def merge_parts(
    out,
    partial,
    partial_lse,
    row,
    first_head,
    first_worker,
    shared,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """Writes to `out` what `shared` workers have of GROUP heads of a row, BLOCK_S parts at once."""
    GROUP_ROWS: tl.constexpr = triton.next_power_of_2(GROUP)
    g = tl.arange(0, GROUP_ROWS)
    d = tl.arange(0, BLOCK_D)
    of_group = (g[:, None] < GROUP) & (d[None, :] < HEAD_DIM)
    highest = tl.full((GROUP_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP_ROWS,), tl.float32)
    acc = tl.zeros((GROUP_ROWS, BLOCK_D), tl.float32)
    for begin in tl.range(0, shared, BLOCK_S):
        s = begin + tl.arange(0, BLOCK_S)
        part = 2 * (first_worker + s) + (s == 0)  # only the first has the row's first tile
        at = part.to(tl.int64)[:, None] * NUM_HEADS + first_head + g[None, :]  # [S, G]
        exists = (s < shared)[:, None] & (g < GROUP)[None, :]
        lse = tl.load(partial_lse + at, mask=exists, other=float("-inf"), cache_modifier=".cg")
        parts = tl.load(
            partial + at[:, :, None] * HEAD_DIM + d[None, None, :],
            mask=(s < shared)[:, None, None] & of_group[None, :, :],
            other=0.0,
            cache_modifier=".cg",
        )
        lse = tl.where(g[None, :] < GROUP, lse, 0.0)  # no NaN in rows of padding
        now = tl.maximum(highest, tl.max(lse, 0))
        weights = tl.exp2(lse - now[None, :])
        shrink = tl.exp2(highest - now)
        total = total * shrink + tl.sum(weights, 0)
        acc = acc * shrink[:, None] + tl.sum(weights[:, :, None] * parts, 0)
        highest = now
    to = out + (row.to(tl.int64) * NUM_HEADS + first_head + g[:, None]) * HEAD_DIM + d[None, :]
    tl.store(to, (acc / total[:, None]).to(out.dtype.element_ty), mask=of_group)


@triton.jit
def combine_kernel(
    rows,
    out,
    partial,
    partial_lse,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
    SETTLED: tl.constexpr,
):
    """A program is one row and one query head; nothing to do where one worker had the whole row."""
    let_next_come()
    if not SETTLED:
        wait_for_previous()
    row = tl.program_id(0) // NUM_HEADS
    first = tl.load(rows + row * 2)
    shared = tl.load(rows + row * 2 + 1)
    if SETTLED:
        wait_for_previous()
    if shared > 1:
        head = tl.program_id(0) % NUM_HEADS
        merge_parts(
            out,
            partial,
            partial_lse,
            row,
            head,
            first,
            shared,
            NUM_HEADS,
            1,
            HEAD_DIM,
            BLOCK_D,
            BLOCK_S,
        )
