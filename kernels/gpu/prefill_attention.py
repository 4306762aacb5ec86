"""Prefill attention in Triton: causal, over cached prefix and new tokens alike, through the table.

K and V of the new tokens are stored already, so one loop reads them and the prefix by their locs. A
tile of queries holds all query heads of a KV head. Tiles of K that every query sees in full need no
mask; the rest, on the diagonal, is a loop of its own (Dao 2023, arXiv:2307.08691, section 3.1).
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.attention_tuning import prefill_config
from kernels.gpu.launch import OVERLAP, begin_program, dot
from kernels.gpu.prefill_plan import TILE_WORDS, PrefillPlan, plan_prefill, tokens_of_tile


def prefill_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    table_idxs: Tensor,
    cached_lens: Tensor,
    extend_lens: Tensor,
    scale: float,
    *,
    out: Tensor | None = None,
    plan: PrefillPlan | None = None,
    page_size: int = 1,
) -> Tensor:
    """As `kernels.reference.attention.prefill_attention`; q [T, H, D] to [T, H, D], no host sync.

    Rows of `q` may be strided. `out` is written when given. A `plan` given is of these rows and
    lengths; else one is made, of the tuned config. Inside a page of `page_size` locs are
    consecutive and aligned: the default assumes nothing. A row may have 0 new tokens.

    Errors: ValueError on a head_dim or dtype that has no kernel, or a table that cannot be used.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[1]
    group = num_heads // num_kv_heads
    assert num_heads == group * num_kv_heads, f"{num_heads = } is no multiple of {num_kv_heads = }"
    assert q.stride()[1:] == (head_dim, 1), "heads of a query are contiguous"
    assert k_cache.is_contiguous(), "K is contiguous by loc"
    assert v_cache.is_contiguous(), "V is contiguous by loc"
    assert page_table.stride(1) == 1, "a row of the page table is contiguous"
    assert scale > 0, "the largest product has the largest weight"
    if plan is None:
        config = prefill_config(head_dim, group, q.dtype)
        lens = cached_lens, extend_lens
        plan = plan_prefill(table_idxs, *lens, num_tokens=num_tokens, group=group, config=config)
    config = plan.config
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    assert out.is_contiguous(), "the output is contiguous"
    prefill_kernel[(len(plan.tiles) * num_kv_heads,)](
        q,
        k_cache,
        v_cache,
        page_table,
        plan.tiles,
        out,
        q.stride(0),
        page_table.stride(0),
        scale * math.log2(math.e),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim),
        BLOCK_M=triton.next_power_of_2(tokens_of_tile(config, group) * group),
        BLOCK_N=config.tile_len,
        PAGE_TILES=config.page_tiles and page_size % config.tile_len == 0,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **OVERLAP,
    )
    return out


@triton.jit
def prefill_kernel(
    q,
    k_cache,
    v_cache,
    page_table,
    tiles,
    out,
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
):
    """A program is one tile of queries and one KV head, the heads of a tile next to each other."""
    begin_program()
    head = tl.program_id(0) % NUM_KV_HEADS
    record = tiles + tl.program_id(0) // NUM_KV_HEADS * TILE_WORDS
    tokens = tl.load(record + 1)
    if tokens > 0:
        first_token = tl.load(record)
        table_idx = tl.load(record + 2)
        first_position = tl.load(record + 3)
        m = tl.arange(0, BLOCK_M)
        d = tl.arange(0, BLOCK_D)
        token = m // GROUP
        of_tile = token[:, None] < tokens
        if HEAD_DIM != BLOCK_D:
            of_tile = of_tile & (d[None, :] < HEAD_DIM)
        at = (first_token + token).to(tl.int64)
        in_token = (head * GROUP + m % GROUP)[:, None] * HEAD_DIM + d[None, :]
        query = tl.load(q + at[:, None] * q_stride + in_token, mask=of_tile, other=0.0)

        locs_of_row = page_table + table_idx.to(tl.int64) * table_stride
        end = first_position + tokens
        seen_by_all = (first_position + 1) // BLOCK_N
        highest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        for MASKED in tl.static_range(2):
            acc, total, highest = _attend_tiles(
                acc,
                total,
                highest,
                query,
                k_cache + head * HEAD_DIM,
                v_cache + head * HEAD_DIM,
                locs_of_row,
                first_position + token,
                seen_by_all if MASKED else 0,
                tl.cdiv(end, BLOCK_N) if MASKED else seen_by_all,
                end,
                scale_log2,
                NUM_KV_HEADS * HEAD_DIM,
                HEAD_DIM,
                BLOCK_D,
                BLOCK_M,
                BLOCK_N,
                PAGE_TILES,
                MASKED,
            )
        to = out + at[:, None] * (NUM_KV_HEADS * GROUP * HEAD_DIM) + in_token
        tl.store(to, (acc / total[:, None]).to(out.dtype.element_ty), mask=of_tile)


@triton.jit
def _attend_tiles(
    acc,
    total,
    highest,
    query,
    k_of_head,
    v_of_head,
    locs_of_row,
    query_position,
    first_tile,
    end_tile,
    end,
    scale_log2,
    LOC_STRIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_TILES: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Adds some tiles of a row to the online softmax; positions from `end` on are never loaded."""
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    position = first_tile * BLOCK_N + n
    if PAGE_TILES:
        loc = tl.load(locs_of_row + first_tile * BLOCK_N, mask=first_tile * BLOCK_N < end, other=0)
    else:
        loc = tl.load(locs_of_row + position, mask=position < end, other=0)
    for tile in tl.range(first_tile, end_tile):
        locs = loc.to(tl.int64)
        if PAGE_TILES:
            locs += n
        at = (locs * LOC_STRIDE)[:, None] + d[None, :]
        if MASKED:
            inside = (position < end)[:, None] & (d[None, :] < HEAD_DIM)
            keys = tl.load(k_of_head + at, mask=inside, other=0.0)
            values = tl.load(v_of_head + at, mask=inside, other=0.0)
        elif HEAD_DIM != BLOCK_D:
            keys = tl.load(k_of_head + at, mask=d[None, :] < HEAD_DIM, other=0.0)
            values = tl.load(v_of_head + at, mask=d[None, :] < HEAD_DIM, other=0.0)
        else:
            keys = tl.load(k_of_head + at)
            values = tl.load(v_of_head + at)
        scores = dot(query, tl.trans(keys), tl.zeros((BLOCK_M, BLOCK_N), tl.float32))
        if MASKED:
            causal = position[None, :] <= query_position[:, None]
            scores = tl.where(causal, scores, float("-inf"))
        position += BLOCK_N
        if PAGE_TILES:
            after = (tile + 1) * BLOCK_N
            loc = tl.load(locs_of_row + after, mask=after < end, other=0)
        else:
            loc = tl.load(locs_of_row + position, mask=position < end, other=0)
        now = tl.maximum(highest, tl.max(scores, 1) * scale_log2)  # finite: all see position 0
        weights = tl.exp2(scores * scale_log2 - now[:, None])
        shrink = tl.exp2(highest - now)
        total = total * shrink + tl.sum(weights, 1)
        acc = dot(weights.to(values.dtype), values, acc * shrink[:, None])
        highest = now
    return acc, total, highest
