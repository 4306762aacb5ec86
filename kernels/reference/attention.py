"""Attention over the paged cache: K and V are read by the locs of the page table, at any page size.

Grouped queries (Ainslie et al. 2023, arXiv:2305.13245): query head h reads the K and V of head
h // (num_heads / num_kv_heads). Lanes past a row's length read the row's own first token and get no
weight: nothing outside the row is ever loaded.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_ROWS_TOGETHER = 8  # padded to the longest; what they gather still fits the processor's cache


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
) -> Tensor:
    """Attention of one query token a row, `q` [B, H, D]; returns [B, H, D], `out` when given.

    Query b reads the first `seq_lens[b] >= 1` positions of row table_idxs[b]. Caches are
    [(num_pages + 1) * page_size, num_kv_heads, head_dim], `page_table` is by row and position.
    """
    together = [
        _attend_padded(q_part, k_cache, v_cache, page_table, rows, lens, scale)
        for q_part, rows, lens in zip(
            *(torch.split(x, _ROWS_TOGETHER) for x in (q, table_idxs, seq_lens)), strict=True
        )
    ]
    return torch.cat(together, out=out)


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
) -> Tensor:
    """Causal attention of the rows' new tokens, whose K and V are stored already.

    `q` is [T, H, D], row after row, T = sum(extend_lens). New token i of row b reads the positions
    0 … cached_lens[b] + i of row table_idxs[b]. Caches as in `decode_attention`. Returns [T, H, D],
    `out` when given.
    """
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    first = 0
    for table_idx, cached_len, extend_len in zip(
        table_idxs.tolist(), cached_lens.tolist(), extend_lens.tolist(), strict=True
    ):
        last = first + extend_len
        locs = page_table[table_idx, : cached_len + extend_len]
        k, v = k_cache.index_select(0, locs), v_cache.index_select(0, locs)
        out[first:last] = _attend_causally(q[first:last], k, v, scale)
        first = last
    return out


def _attend_padded(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    table_idxs: Tensor,
    seq_lens: Tensor,
    scale: float,
) -> Tensor:
    """`decode_attention` of a few rows, gathered at the length of the longest."""
    num_reqs, num_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[1]
    max_len = int(seq_lens.max())
    locs = page_table[table_idxs, :max_len]  # [B, L]
    mask = None
    if num_reqs > 1:
        inside = torch.arange(max_len, device=q.device) < seq_lens[:, None]  # [B, L]
        locs = torch.where(inside, locs, locs[:, :1])
        mask = inside[:, None, None]  # [B, 1, 1, L]
    grouped = q.view(num_reqs, num_kv_heads, num_heads // num_kv_heads, head_dim)
    out = F.scaled_dot_product_attention(
        grouped, _gather(k_cache, locs), _gather(v_cache, locs), mask, scale=scale
    )
    return out.reshape(num_reqs, num_heads, head_dim)


def _gather(cache: Tensor, locs: Tensor) -> Tensor:
    """The cache's entries at `locs` [B, L] as [B, num_kv_heads, L, head_dim]."""
    num_reqs, max_len = locs.shape
    flat = cache.index_select(0, locs.reshape(-1))
    return flat.view(num_reqs, max_len, *cache.shape[1:]).transpose(1, 2)


def _attend_causally(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention of `q` [extend_len, H, D], the last of the tokens `k`, `v` [seq_len, Hk, D]."""
    extend_len, num_heads, head_dim = q.shape
    seq_len, num_kv_heads, _ = k.shape
    group = num_heads // num_kv_heads
    grouped = q.view(extend_len, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    k, v = (  # [Hk, G, seq_len, D], a group sharing its memory
        x.transpose(0, 1)[:, None].expand(-1, group, -1, -1) for x in (k, v)
    )
    cached_len = seq_len - extend_len
    mask = None
    if cached_len:
        mask = torch.ones(extend_len, seq_len, dtype=torch.bool, device=q.device).tril_(cached_len)
    out = F.scaled_dot_product_attention(grouped, k, v, mask, is_causal=mask is None, scale=scale)
    return out.permute(2, 0, 1, 3).reshape(extend_len, num_heads, head_dim)
