"""Decode attention of few rows, which waits for memory more than it computes: a worker reads its
first tile while the kernel in front still runs.

All K and V of a row are old but those of its newest token, and so are the plan and the locs. What
is old is in memory since before the last ordinary launch, one without OVERLAP: kernels that come
early never come past such a one. Only the newest token, and the queries, are waited for.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.gpu.decode_plan import RECORD_WORDS
from kernels.gpu.decode_rows import attend_row, attend_rows
from kernels.gpu.decode_tiles import fold_tile, no_tiles
from kernels.gpu.launch import let_next_come, wait_for_previous


@triton.jit
def attend_early_kernel(
    q,
    k_cache,
    v_cache,
    page_table,
    table_idxs,
    seq_lens,
    workers,
    rows,
    out,
    partial,
    partial_lse,
    arrivals,
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
    SETTLED: tl.constexpr,
):
    """As `attend_kernel`, with the same arguments; SETTLED or not at all."""
    let_next_come()
    worker = tl.program_id(0) // NUM_KV_HEADS
    head = tl.program_id(0) % NUM_KV_HEADS
    record = workers + worker * RECORD_WORDS
    row = tl.load(record)
    tile = tl.load(record + 1)
    left = tl.load(record + 2)
    seq_len = tl.load(record + 3)
    table_idx = tl.load(record + 4)
    locs_of_row = page_table + table_idx.to(tl.int64) * table_stride
    k_of_head = k_cache + head * HEAD_DIM
    v_of_head = v_cache + head * HEAD_DIM
    d = tl.arange(0, BLOCK_D)
    position = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = position < tl.where(left > 0, seq_len, 0)
    loc = tl.load(locs_of_row + position, mask=inside, other=0).to(tl.int64)
    at = (loc * (NUM_KV_HEADS * HEAD_DIM))[:, None] + d[None, :]
    of_head = d[None, :] < HEAD_DIM
    is_old = (position < seq_len - 1)[:, None] & inside[:, None] & of_head
    keys = tl.load(k_of_head + at, mask=is_old, other=0.0)
    values = tl.load(v_of_head + at, mask=is_old, other=0.0)
    wait_for_previous()
    is_newest = (position == seq_len - 1)[:, None] & inside[:, None] & of_head
    keys = tl.load(k_of_head + at, mask=is_newest, other=keys)
    values = tl.load(v_of_head + at, mask=is_newest, other=values)

    m = tl.arange(0, BLOCK_M)
    of_group = (m[:, None] < GROUP) & of_head
    in_token = (head * GROUP + m)[:, None] * HEAD_DIM + d[None, :]
    if left > 0:
        count = tl.minimum(left, tl.cdiv(seq_len, BLOCK_N) - tile)
        query = tl.load(q + row.to(tl.int64) * q_stride + in_token, mask=of_group, other=0.0)
        acc, total, highest = no_tiles(BLOCK_M, BLOCK_N, BLOCK_D)
        turned = tl.trans(keys)
        acc, total, highest = fold_tile(
            acc, total, highest, query, turned, values, inside, scale_log2, BLOCK_M, BLOCK_N
        )
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
            tile + 1,
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
    attend_rows(
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
