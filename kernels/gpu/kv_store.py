"""Storing the K and V of a step's new tokens."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import OVERLAP, begin_program

FEW_TOKENS = 1024  # up to here a program stores one token, past it TOKENS_OF_MANY
TOKENS_OF_MANY = 2
_WARP_ELEMENTS = 256  # 16 bytes of bfloat16 a thread


def store_kv(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, out_locs: Tensor) -> None:
    """Writes `k_cache[out_locs[i]] = k[i]`, and the same for V, in place.

    Caches are contiguous [(num_pages + 1) * page_size, num_kv_heads, head_dim], `k` and `v` are
    [T, num_kv_heads, head_dim], each token's part contiguous, `out_locs` is integer [T]. Equal
    out_locs are allowed on the dummy page only, where any of the values may stay.
    """
    num_tokens, num_kv_heads, head_dim = k.shape
    if num_tokens == 0:
        return
    width = num_kv_heads * head_dim
    assert k_cache.is_contiguous()
    assert v_cache.is_contiguous()
    assert k.stride()[1:] == v.stride()[1:] == (head_dim, 1)
    tokens = 1 if num_tokens <= FEW_TOKENS else TOKENS_OF_MANY
    padded = triton.next_power_of_2(width)
    store_kernel[(triton.cdiv(num_tokens, tokens),)](
        k_cache, v_cache, k, v, out_locs, num_tokens,
        k.stride(0), v.stride(0), width, tokens, padded,
        num_warps=max(1, min(8, tokens * padded // _WARP_ELEMENTS)), **OVERLAP,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_tokens"])
def store_kernel(
    k_cache,
    v_cache,
    k,
    v,
    out_locs,
    num_tokens,
    K_STRIDE: tl.constexpr,
    V_STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    begin_program()
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    column = tl.arange(0, BLOCK_W)[None, :]
    exists = token < num_tokens
    mask = exists[:, None] & (column < WIDTH)
    loc = tl.load(out_locs + token, mask=exists, other=0).to(tl.int64)[:, None]
    from_row = token.to(tl.int64)[:, None]
    k_row = tl.load(k + from_row * K_STRIDE + column, mask=mask)
    v_row = tl.load(v + from_row * V_STRIDE + column, mask=mask)
    tl.store(k_cache + loc * WIDTH + column, k_row, mask=mask)
    tl.store(v_cache + loc * WIDTH + column, v_row, mask=mask)
