"""What a program of decode attention does with its rows: tile after tile, and one row after another
as its share of the work goes on.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.gpu.decode_tiles import attend_tiles, leave_row, no_tiles


@triton.jit
def attend_rows(
    q,
    in_token,
    of_group,
    k_of_head,
    v_of_head,
    page_table,
    table_idxs,
    seq_lens,
    rows,
    out,
    partial,
    partial_lse,
    arrivals,
    worker,
    head,
    row,
    tile,
    left,
    seq_len,
    table_idx,
    q_stride,
    table_stride,
    scale_log2,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_TILES: tl.constexpr,
    FUSED_COMBINE: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """The `left` tiles that a worker still has, from `tile` of `row` on. `in_token` [BLOCK_M,
    BLOCK_D] is where the queries of its KV head lie in a token, `of_group` which of them exist.
    """
    while left > 0:
        count = tl.minimum(left, tl.cdiv(seq_len, BLOCK_N) - tile)
        query = tl.load(q + row.to(tl.int64) * q_stride + in_token, mask=of_group, other=0.0)
        acc, total, highest = no_tiles(BLOCK_M, BLOCK_N, BLOCK_D)
        attend_row(
            acc,
            total,
            highest,
            query,
            k_of_head,
            v_of_head,
            page_table + table_idx.to(tl.int64) * table_stride,
            rows,
            out,
            partial,
            partial_lse,
            arrivals,
            worker,
            row,
            head,
            seq_len,
            tile,
            tile,
            tile + count,
            scale_log2,
            NUM_KV_HEADS,
            GROUP,
            HEAD_DIM,
            BLOCK_D,
            BLOCK_M,
            BLOCK_N,
            PAGE_TILES,
            FUSED_COMBINE,
            BLOCK_S,
        )
        left -= count
        tile = 0
        row += 1
        seq_len = tl.load(seq_lens + row, mask=left > 0, other=1).to(tl.int32)
        table_idx = tl.load(table_idxs + row, mask=left > 0, other=0).to(tl.int32)


@triton.jit
def attend_row(
    acc,
    total,
    highest,
    query,
    k_of_head,
    v_of_head,
    locs_of_row,
    rows,
    out,
    partial,
    partial_lse,
    arrivals,
    worker,
    row,
    head,
    seq_len,
    first_tile,
    next_tile,
    end_tile,
    scale_log2,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_TILES: tl.constexpr,
    FUSED_COMBINE: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """A worker's tiles of a row, from `first_tile` to `end_tile`, those before `next_tile` folded
    already; leaves what they come to.
    """
    acc, total, highest = attend_tiles(
        acc,
        total,
        highest,
        query,
        k_of_head,
        v_of_head,
        locs_of_row,
        seq_len,
        next_tile,
        end_tile,
        scale_log2,
        NUM_KV_HEADS * HEAD_DIM,
        HEAD_DIM,
        BLOCK_D,
        BLOCK_M,
        BLOCK_N,
        PAGE_TILES,
    )
    leave_row(
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
        first_tile == 0,
        end_tile - first_tile == tl.cdiv(seq_len, BLOCK_N),
        NUM_KV_HEADS,
        GROUP,
        HEAD_DIM,
        BLOCK_D,
        BLOCK_M,
        FUSED_COMBINE,
        BLOCK_S,
    )
