"""Storing the K and V of a step's new tokens."""

from __future__ import annotations

from torch import Tensor


def store_kv(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, out_locs: Tensor) -> None:
    """Writes `k_cache[out_locs[i]] = k[i]`, and the same for V, in place.

    Caches are [(num_pages + 1) * page_size, num_kv_heads, head_dim], `k` and `v` are
    [T, num_kv_heads, head_dim], `out_locs` is int64 [T]. Equal out_locs are allowed on the dummy
    page only, where any of the values may stay.
    """
    k_cache.index_copy_(0, out_locs, k)
    v_cache.index_copy_(0, out_locs, v)
