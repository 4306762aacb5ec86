"""Decode attention in Triton: one query token a row, K and V read by raw locs of the page table.

The query heads of a KV head make one tile, so K and V are read once for all of them. The softmax is
the online one (Milakov and Gimelshein 2018, arXiv:1805.02867), in powers of two. Work is cut as
`decode_plan` says; partial results are merged by their log-sum-exp (Dao et al. 2023,
"Flash-Decoding for long-context inference"). The next tile's locs are loaded one tile ahead: when K
waits for a loc of its own turn, Triton's pipeliner cannot keep two tiles in flight.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.decode_combine import combine_kernel
from kernels.gpu.decode_early import attend_early_kernel
from kernels.gpu.decode_plan import RECORD_WORDS
from kernels.gpu.decode_rows import attend_rows
from kernels.gpu.decode_workspace import DecodeWorkspace, decode_workspace
from kernels.gpu.launch import OVERLAP, let_next_come, wait_for_previous

_MERGED_ELEMENTS = 8192  # of partial results that a program of the combine kernel holds at once
_FUSED_ELEMENTS = 2048  # as above, in the attention kernel: more would cost it registers


def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    table_idxs: Tensor,
    seq_lens: Tensor,
    scale: float,
    *,
    out: Tensor | None = None,
    workspace: DecodeWorkspace | None = None,
    page_size: int = 1,
    settled: bool = False,
) -> Tensor:
    """As `kernels.reference.attention.decode_attention`; q [B, H, D] to [B, H, D], no host sync.

    Rows of `q` may be strided. `out` is written when given. A `workspace` given has had its
    `plan_step` with these rows and lengths; else one is made. Inside a page of `page_size` locs are
    consecutive and aligned: the default assumes nothing. `settled`: the workspace's plan, the locs,
    and K and V of all tokens but the rows' last ones were written before an ordinary launch, one
    without OVERLAP, that came before this call. They may then be read while the kernel in front
    still runs.
    """
    num_reqs, num_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[1]
    assert q.stride()[1:] == (head_dim, 1), "heads of a query are contiguous"
    assert k_cache.is_contiguous(), "K is contiguous by loc"
    assert v_cache.is_contiguous(), "V is contiguous by loc"
    assert page_table.stride(1) == 1, "a row of the page table is contiguous"
    assert scale > 0, "the largest product has the largest weight"
    if workspace is None:
        settled = False
        workspace = decode_workspace(
            num_reqs, num_heads, num_kv_heads, head_dim, dtype=q.dtype, device=q.device
        )
        workspace.plan_step(table_idxs, seq_lens)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    assert out.is_contiguous(), "the output is contiguous"
    config, plan = workspace.config, workspace.plan
    assert len(plan.rows) == num_reqs, "a workspace is made for its number of rows"
    group = num_heads // num_kv_heads
    partials = workspace.partial, workspace.partial_lse, workspace.arrivals
    shape = {"HEAD_DIM": head_dim, "BLOCK_D": triton.next_power_of_2(head_dim)}
    kernel = attend_early_kernel if settled and config.early_tile else attend_kernel
    kernel[(len(plan.workers) * num_kv_heads,)](
        q,
        k_cache,
        v_cache,
        page_table,
        table_idxs,
        seq_lens,
        *plan,
        out,
        *partials,
        q.stride(0),
        page_table.stride(0),
        scale * math.log2(math.e),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        **shape,
        BLOCK_M=max(16, triton.next_power_of_2(group)),
        BLOCK_N=config.tile_len,
        PAGE_TILES=config.page_tiles and page_size % config.tile_len == 0,
        FUSED_COMBINE=config.fused_combine,
        BLOCK_S=_together(triton.next_power_of_2(group) * shape["BLOCK_D"]),
        SETTLED=settled,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **OVERLAP,
    )
    if not config.fused_combine:
        combine_kernel[(num_reqs * num_heads,)](
            plan.rows,
            out,
            *partials[:2],
            NUM_HEADS=num_heads,
            **shape,
            BLOCK_S=min(64, _MERGED_ELEMENTS // shape["BLOCK_D"]),
            SETTLED=settled,
            num_warps=4,
            **OVERLAP,
        )
    return out


def _together(elements: int) -> int:
    """How many partial results of `elements` numbers each the last worker merges at once."""
    return 1 if 2 * elements >= _FUSED_ELEMENTS else _FUSED_ELEMENTS // elements


@triton.jit
def attend_kernel(
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
    """A program is one worker and one KV head, the heads of a worker next to each other."""
    let_next_come()
    if not SETTLED:
        wait_for_previous()
    worker = tl.program_id(0) // NUM_KV_HEADS
    head = tl.program_id(0) % NUM_KV_HEADS
    record = workers + worker * RECORD_WORDS
    row = tl.load(record)
    tile = tl.load(record + 1)
    left = tl.load(record + 2)
    seq_len = tl.load(record + 3)
    table_idx = tl.load(record + 4)
    if SETTLED:
        wait_for_previous()
    k_of_head = k_cache + head * HEAD_DIM
    v_of_head = v_cache + head * HEAD_DIM
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    of_group = m[:, None] < GROUP
    if HEAD_DIM != BLOCK_D:
        of_group = of_group & (d[None, :] < HEAD_DIM)
    in_token = (head * GROUP + m)[:, None] * HEAD_DIM + d[None, :]
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
