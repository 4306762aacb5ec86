"""What the programs of decode attention do with tiles of a row: fold them into a softmax, and leave
the result where it belongs.

The state of the softmax is `acc` [BLOCK_M, BLOCK_D], `highest` [BLOCK_M] of the scores in powers of
two, and `total` [BLOCK_M, BLOCK_N], whose sum over a tile's positions is that of the weights: it is
taken once, at the end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.gpu.decode_combine import merge_parts
from kernels.gpu.launch import dot


@triton.jit
def attend_tiles(
    acc,
    total,
    highest,
    query,
    k_of_head,
    v_of_head,
    locs_of_row,
    seq_len,
    first_tile,
    end_tile,
    scale_log2,
    LOC_STRIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_TILES: tl.constexpr,
):
    """The softmax of `query` [BLOCK_M, BLOCK_D] after some more tiles of a row. Past the row's end
    its last token is read again, which weighs nothing: cheaper than not to read.
    """
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    last = seq_len - 1
    position = first_tile * BLOCK_N + n
    if PAGE_TILES:
        loc = tl.load(locs_of_row + tl.minimum(first_tile * BLOCK_N, last))
    else:
        loc = tl.load(locs_of_row + tl.minimum(position, last))
    for tile in tl.range(first_tile, end_tile):
        locs = loc.to(tl.int64)
        if PAGE_TILES:
            locs += tl.minimum(n, last - tile * BLOCK_N)
        at = (locs * LOC_STRIDE)[:, None] + d[None, :]
        if HEAD_DIM != BLOCK_D:
            of_head = (d < HEAD_DIM)[None, :]
            keys = tl.load(k_of_head + at, mask=of_head, other=0.0)
            values = tl.load(v_of_head + at, mask=of_head, other=0.0)
        else:
            keys = tl.load(k_of_head + at)
            values = tl.load(v_of_head + at)
        inside = position < seq_len
        position += BLOCK_N
        if PAGE_TILES:
            loc = tl.load(locs_of_row + tl.minimum((tile + 1) * BLOCK_N, last))
        else:
            loc = tl.load(locs_of_row + tl.minimum(position, last))
        acc, total, highest = fold_tile(
            acc, total, highest, query, tl.trans(keys), values, inside, scale_log2, BLOCK_M, BLOCK_N
        )
    return acc, total, highest


@triton.jit
def fold_tile(
    acc,
    total,
    highest,
    query,
    keys,
    values,
    inside,
    scale_log2,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The softmax after one tile, of `keys` [BLOCK_D, BLOCK_N] and `values` [BLOCK_N, BLOCK_D]; a
    row's first has a position `inside`.
    """
    scores = dot(query, keys, tl.zeros((BLOCK_M, BLOCK_N), tl.float32))
    scores = tl.where(inside[None, :], scores, float("-inf"))
    now = tl.maximum(highest, tl.max(scores, 1) * scale_log2)  # finite: a first tile has one inside
    weights = tl.exp2(scores * scale_log2 - now[:, None])
    shrink = tl.exp2(highest - now)
    total = total * shrink[:, None] + weights
    acc = dot(weights.to(values.dtype), values, acc * shrink[:, None])
    return acc, total, now


@triton.jit
def no_tiles(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    """The softmax before the first tile."""
    highest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    return acc, total, highest


@triton.jit
def leave_row(
    acc,
    total,
    highest,
    rows,
    out,
    partial,
    partial_lse,
    arrivals,
    worker,
    row,
    head,
    is_first,
    is_whole,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    FUSED_COMBINE: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """Leaves a worker's softmax of a row and KV head: its attention where the worker had the whole
    row, else a partial result, `is_first` where it began with the row's first tile.
    """
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    of_group = m[:, None] < GROUP
    if HEAD_DIM != BLOCK_D:
        of_group = of_group & (d[None, :] < HEAD_DIM)
    heads = head * GROUP + m
    in_token = heads[:, None] * HEAD_DIM + d[None, :]
    total = tl.sum(total, 1)
    acc = acc / total[:, None]
    if is_whole:
        to = out + row.to(tl.int64) * (NUM_HEADS * HEAD_DIM) + in_token
        tl.store(to, acc.to(out.dtype.element_ty), mask=of_group)
    else:
        part = (worker * 2 + is_first).to(tl.int64) * NUM_HEADS
        tl.store(partial + part * HEAD_DIM + in_token, acc, mask=of_group)
        tl.store(partial_lse + part + heads, highest + tl.log2(total), mask=m < GROUP)
        if FUSED_COMBINE:
            first = tl.load(rows + row * 2)
            shared = tl.load(rows + row * 2 + 1)
            arrival = arrivals + row * NUM_KV_HEADS + head
            tl.debug_barrier()  # every warp's part is written before it is announced
            if tl.atomic_add(arrival, 1, sem="acq_rel") == shared - 1:
                tl.store(arrival, 0)
                merge_parts(
                    out,
                    partial,
                    partial_lse,
                    row,
                    head * GROUP,
                    first,
                    shared,
                    NUM_HEADS,
                    GROUP,
                    HEAD_DIM,
                    BLOCK_D,
                    BLOCK_S,
                )
