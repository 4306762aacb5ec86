"""A paged cache with NaN at unused locs and pages in random order, and attention by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_SEQ_LEN = 96


@dataclass(frozen=True)
class PagedWorld:
    """Rows of known K and V (float32 [len, num_kv_heads, head_dim] each), stored by loc."""

    k_cache: Tensor
    v_cache: Tensor
    page_table: Tensor
    k_rows: list[Tensor]
    v_rows: list[Tensor]


def paged_world(
    lens: list[int], *, page_size: int, num_kv_heads: int, head_dim: int, seed: int = 0
) -> PagedWorld:
    """Row i holds lens[i] tokens. What no row owns is NaN; table entries past a row point there."""
    random = torch.Generator().manual_seed(seed)
    pages_of = [-(-length // page_size) for length in lens]
    num_pages = sum(pages_of) + 3
    order = torch.randperm(num_pages, generator=random).tolist()
    cache = torch.full((2, num_pages * page_size, num_kv_heads, head_dim), math.nan)
    page_table = torch.full((len(lens), MAX_SEQ_LEN), order.pop() * page_size, dtype=torch.int32)
    rows = []
    for row, length in enumerate(lens):
        tokens = torch.randn(2, length, num_kv_heads, head_dim, generator=random)
        for n in range(pages_of[row]):
            first_loc, begin = order.pop() * page_size, n * page_size
            locs = torch.arange(first_loc, first_loc + page_size)
            page_table[row, begin : begin + page_size] = locs[: MAX_SEQ_LEN - begin]
            end = min(begin + page_size, length)
            cache[:, locs[: end - begin]] = tokens[:, begin:end]
        rows.append(tokens)
    return PagedWorld(
        cache[0], cache[1], page_table, [row[0] for row in rows], [row[1] for row in rows]
    )


def attend_by_hand(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """One query [H, D] over all of `k`, `v` [len, Hk, D], head by head in float64."""
    group = q.shape[0] // k.shape[1]
    out = []
    for head, query in enumerate(q.double()):
        keys, values = k[:, head // group].double(), v[:, head // group].double()
        weights = torch.exp(keys @ query * scale)
        out.append(weights @ values / weights.sum())
    return torch.stack(out)
