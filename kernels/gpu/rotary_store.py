"""What becomes of Q, K and V between their projection and attention, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import OVERLAP, begin_program

_TILE_ELEMENTS = 1024  # of a half, at most
_WARP_ELEMENTS = 256  # of a half: 16 bytes of bfloat16 a thread


def rotary_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    signed_sin: Tensor,
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out_locs: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Normalises, if told to, and rotates `q` in place; stores K, treated alike, and V by loc.

    `q` is [T, num_heads, head_dim], `k` and `v` [T, num_kv_heads, head_dim], each token's part
    contiguous; `k` and `v` stay as they are. `cos` and `signed_sin` are the contiguous float32
    tables of `rotary_tables`, `positions` [T] their rows. Caches and `out_locs` as in `store_kv`.
    `q_norm` and `k_norm` [head_dim], both or neither, are the weights of an RMS norm of each head,
    with `eps`. What is normalised is rounded to the dtype of `q` before it is rotated, as
    transformers does.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    assert head_dim % 2 == 0
    assert (q_norm is None) == (k_norm is None)
    for heads in (q, k, v):
        assert heads.stride()[1:] == (head_dim, 1)
    for tensor in (cos, signed_sin, k_cache, v_cache):
        assert tensor.is_contiguous()
    if num_tokens == 0:
        return
    half_width = triton.next_power_of_2(head_dim // 2)
    most_heads = triton.next_power_of_2(max(num_heads, num_kv_heads))
    heads_together = min(max(1, _TILE_ELEMENTS // half_width), most_heads)
    q_tiles = triton.cdiv(num_heads, heads_together)
    kv_tiles = triton.cdiv(num_kv_heads, heads_together)
    rotary_store_kernel[(num_tokens, q_tiles + kv_tiles)](
        q, k, v, cos, signed_sin, positions, k_cache, v_cache, out_locs, q_norm, k_norm, eps,
        q.stride(0), k.stride(0), v.stride(0), num_heads, num_kv_heads, head_dim,
        q_norm is not None, q_tiles, heads_together, half_width,
        num_warps=max(1, heads_together * half_width // _WARP_ELEMENTS), **OVERLAP,
    )  # fmt: skip


@triton.jit
def rotary_store_kernel(
    q,
    k,
    v,
    cos,
    signed_sin,
    positions,
    k_cache,
    v_cache,
    out_locs,
    q_norm,
    k_norm,
    eps,
    Q_STRIDE: tl.constexpr,
    K_STRIDE: tl.constexpr,
    V_STRIDE: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HAS_NORM: tl.constexpr,
    Q_TILES: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Program (token, tile): BLOCK_H heads of Q, or of K and V, in halves [BLOCK_H, BLOCK_D]."""
    begin_program()
    HALF: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    lane = tl.arange(0, BLOCK_D)
    turn = tl.load(positions + token).to(tl.int64) * HEAD_DIM + lane
    turn_cos = tl.load(cos + turn, mask=lane < HALF, other=0)[None, :]
    turn_sin = tl.load(signed_sin + turn + HALF, mask=lane < HALF, other=0)[None, :]
    if tile < Q_TILES:
        head = tile * BLOCK_H + tl.arange(0, BLOCK_H)
        left = q + token * Q_STRIDE + head[:, None] * HEAD_DIM + lane[None, :]
        mask = (head < NUM_HEADS)[:, None] & (lane < HALF)[None, :]
        x = tl.load(left, mask=mask, other=0).to(tl.float32)
        y = tl.load(left + HALF, mask=mask, other=0).to(tl.float32)
        if HAS_NORM:
            x, y = _normalise(x, y, q_norm, eps, q.dtype.element_ty, HALF, BLOCK_D)
        tl.store(left, (x * turn_cos - y * turn_sin).to(q.dtype.element_ty), mask=mask)
        tl.store(left + HALF, (y * turn_cos + x * turn_sin).to(q.dtype.element_ty), mask=mask)
    else:
        head = (tile - Q_TILES) * BLOCK_H + tl.arange(0, BLOCK_H)
        offset = head[:, None] * HEAD_DIM + lane[None, :]
        mask = (head < NUM_KV_HEADS)[:, None] & (lane < HALF)[None, :]
        stored = tl.load(out_locs + token).to(tl.int64) * (NUM_KV_HEADS * HEAD_DIM) + offset
        left = k + token * K_STRIDE + offset
        x = tl.load(left, mask=mask, other=0).to(tl.float32)
        y = tl.load(left + HALF, mask=mask, other=0).to(tl.float32)
        v_x = tl.load(v + token * V_STRIDE + offset, mask=mask)
        v_y = tl.load(v + token * V_STRIDE + offset + HALF, mask=mask)
        tl.store(v_cache + stored, v_x, mask=mask)
        tl.store(v_cache + stored + HALF, v_y, mask=mask)
        if HAS_NORM:
            x, y = _normalise(x, y, k_norm, eps, k.dtype.element_ty, HALF, BLOCK_D)
        to = k_cache.dtype.element_ty
        tl.store(k_cache + stored, (x * turn_cos - y * turn_sin).to(to), mask=mask)
        tl.store(k_cache + stored + HALF, (y * turn_cos + x * turn_sin).to(to), mask=mask)


@triton.jit
def _normalise(
    x, y, weight, eps, ROUND_TO: tl.constexpr, HALF: tl.constexpr, BLOCK_D: tl.constexpr
):
    """The RMS norm of heads whose halves are `x` and `y`, float32 [BLOCK_H, BLOCK_D] as these."""
    lane = tl.arange(0, BLOCK_D)
    x_weight = tl.load(weight + lane, mask=lane < HALF, other=0).to(tl.float32)[None, :]
    y_weight = tl.load(weight + HALF + lane, mask=lane < HALF, other=0).to(tl.float32)[None, :]
    squares = tl.sum(x * x, axis=1) + tl.sum(y * y, axis=1)
    inverse = tl.rsqrt(squares / (2 * HALF) + eps)[:, None]
    x = (x * inverse * x_weight).to(ROUND_TO).to(tl.float32)
    y = (y * inverse * y_weight).to(ROUND_TO).to(tl.float32)
    return x, y
