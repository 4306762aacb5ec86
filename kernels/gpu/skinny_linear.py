"""Matrix products of few tokens in Triton. The weight's bytes decide: each is read once, in few
programs' hands, with as much of it under way as the card takes.

One token is multiplied on the CUDA cores, every thread its own 16 bytes of the weight at a time.
More tokens go through `tl.dot`, 16 of them a tile; the warps of a program share its rows and split
the columns, so that 8 rows a program keep all of them busy. Either way a program has its rows to
the end: nothing is combined afterwards, and equal inputs give equal results.

Many tokens are not launched early: their programs would hold shared memory while they wait, and a
step of 8 rows on an H200 takes 1,340 us with that and 1,191 us without.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import OVERLAP, begin_program, dot, let_next_come, wait_for_previous
from kernels.gpu.linear_tuning import MAX_TOKENS, LinearConfig, linear_config

_DOT_TOKENS = 16  # the tokens of a tile; those that do not exist are zero


def skinny_linear(
    x: Tensor,
    weight: Tensor,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    add: Tensor | None = None,
    out: Tensor | None = None,
    config: LinearConfig | None = None,
) -> Tensor:
    """As `kernels.reference.skinny_linear.skinny_linear`, of few tokens; no host sync.

    At most MAX_TOKENS; rows of `x` may be strided. `add` is contiguous and must not overlap `x`,
    which programs still read when others have written. Without `add`, `out` is written when given.
    The config is the tuned one unless one is given.
    """
    (num_tokens, width), num_rows = x.shape, len(weight)
    assert num_tokens <= MAX_TOKENS, f"{num_tokens = }, at most {MAX_TOKENS} are few"
    assert x.stride(1) == 1, "a row of x is contiguous"
    assert weight.is_contiguous(), "the weight is contiguous"
    assert weight.shape[1] == width, f"{weight.shape = } for rows of {width}"
    assert not (gated and add is not None), "a gated product is added to nothing"
    if config is None:
        config = linear_config(num_tokens, num_rows, width, x.dtype, gated=gated)
    if gated:
        num_rows //= 2
    if add is not None:
        assert out is None, "the sum is written to add"
        out = add
    elif out is None:
        out = torch.empty(num_tokens, num_rows, dtype=x.dtype, device=x.device)
    assert out.shape == (num_tokens, num_rows), f"{out.shape = } for {num_tokens} x {num_rows}"
    assert out.is_contiguous(), "the output is contiguous"
    if not num_tokens:
        return out
    grid = (triton.cdiv(num_rows, config.tile_rows),)
    tensors = out, x, weight, x if norm is None else norm
    form = {"HAS_NORM": norm is not None, "GATED": gated, "HAS_ADD": add is not None}
    if num_tokens == 1:
        multiply_kernel[grid](
            *tensors, num_rows, eps, **form, WIDTH=width,
            BLOCK_N=config.tile_rows, BLOCK_K=config.tile_columns, STAGES=config.num_stages,
            num_warps=config.num_warps, num_stages=config.num_stages, **OVERLAP,
        )  # fmt: skip
    else:
        dot_kernel[grid](
            *tensors, x.stride(0), num_tokens, num_rows, eps, **form, WIDTH=width,
            BLOCK_T=_DOT_TOKENS, BLOCK_N=config.tile_rows,
            BLOCK_K=config.tile_columns // config.num_warps, WARPS=config.num_warps,
            num_warps=config.num_warps, num_stages=config.num_stages,
        )  # fmt: skip
    return out


@triton.jit
def multiply_kernel(
    out,
    x,
    weight,
    norm,
    num_rows,
    eps,
    HAS_NORM: tl.constexpr,
    GATED: tl.constexpr,
    HAS_ADD: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One token. The first tile of the weight is asked for before anything else, is under way while
    the token is normalised, and is multiplied last; the others come STAGES ahead.
    """
    let_next_come()
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    row = tl.minimum(n, num_rows - 1).to(tl.int64)  # the last one again, not past the end
    at = weight + row[:, None] * WIDTH + k[None, :]
    up_at = weight + (row[:, None] + num_rows) * WIDTH + k[None, :]
    first_tile = _streamed(at, k[None, :] < WIDTH)
    if GATED:
        first_up = _streamed(up_at, k[None, :] < WIDTH)
    wait_for_previous()
    tl.debug_barrier()  # else ptxas has the loads wait for x
    first_part, first_scale = _columns(x, norm, k, HAS_NORM, WIDTH)
    inverse_rms = 1.0
    if HAS_NORM:
        squares = first_part.to(tl.float32) * first_part.to(tl.float32)
        for first in tl.range(BLOCK_K, WIDTH, BLOCK_K):
            part = tl.load(x + first + k, mask=first + k < WIDTH, other=0).to(tl.float32)
            squares += part * part
        inverse_rms = tl.rsqrt(tl.sum(squares, 0) / WIDTH + eps)
    acc = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    up_acc = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for first in tl.range(BLOCK_K, WIDTH, BLOCK_K, num_stages=STAGES):
        inside = first + k[None, :] < WIDTH
        part, scale = _columns(x, norm, first + k, HAS_NORM, WIDTH)
        wide = _normed(part, inverse_rms, scale, HAS_NORM)[None, :]
        acc += _streamed(at + first, inside).to(tl.float32) * wide
        if GATED:
            up_acc += _streamed(up_at + first, inside).to(tl.float32) * wide
    wide = _normed(first_part, inverse_rms, first_scale, HAS_NORM)[None, :]
    acc += first_tile.to(tl.float32) * wide
    if GATED:
        up_acc += first_up.to(tl.float32) * wide
    result = tl.sum(acc, 1)[None, :]
    up = tl.sum(up_acc, 1)[None, :]
    t = tl.arange(0, 1)
    _finish(out, result, up, t[:, None], n[None, :], 1, num_rows, GATED, HAS_ADD)


@triton.jit(do_not_specialize=["num_tokens"])
def dot_kernel(
    out,
    x,
    weight,
    norm,
    x_stride,
    num_tokens,
    num_rows,
    eps,
    HAS_NORM: tl.constexpr,
    GATED: tl.constexpr,
    HAS_ADD: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Up to BLOCK_T tokens. Products of three dimensions: Triton gives each warp one of the first,
    BLOCK_K columns of a tile.
    """
    begin_program()
    STEP: tl.constexpr = WARPS * BLOCK_K
    t = tl.arange(0, BLOCK_T)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, WARPS)[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    row = tl.minimum(n, num_rows - 1).to(tl.int64)
    exists = (t < num_tokens)[None, :, None]
    x_at = x + t[None, :, None] * x_stride + k[:, None, :]  # [WARPS, BLOCK_T, BLOCK_K]
    at = weight + row[None, None, :] * WIDTH + k[:, :, None]  # [WARPS, BLOCK_K, BLOCK_N]
    up_at = weight + (row[None, None, :] + num_rows) * WIDTH + k[:, :, None]
    inverse_rms = tl.zeros((1, BLOCK_T, 1), tl.float32)
    if HAS_NORM:
        squares = tl.zeros((WARPS, BLOCK_T, BLOCK_K), tl.float32)
        for first in tl.range(0, WIDTH, STEP):
            inside = exists & (first + k < WIDTH)[:, None, :]
            part = tl.load(x_at + first, mask=inside, other=0).to(tl.float32)
            squares += part * part
        total = tl.sum(tl.sum(squares, 2), 0)
        inverse_rms = tl.rsqrt(total / WIDTH + eps)[None, :, None]
    acc = tl.zeros((WARPS, BLOCK_T, BLOCK_N), tl.float32)
    up_acc = tl.zeros((WARPS, BLOCK_T, BLOCK_N), tl.float32)
    for first in tl.range(0, WIDTH, STEP):
        column = first + k
        part = tl.load(x_at + first, mask=exists & (column < WIDTH)[:, None, :], other=0)
        if HAS_NORM:
            scale = tl.load(norm + column, mask=column < WIDTH, other=0)
            part = _normed(part, inverse_rms, scale[:, None, :], HAS_NORM).to(part.dtype)
        inside = column[:, :, None] < WIDTH
        acc = dot(part, _streamed(at + first, inside), acc)
        if GATED:
            up_acc = dot(part, _streamed(up_at + first, inside), up_acc)
    result = tl.sum(acc, 0)
    up = tl.sum(up_acc, 0)
    _finish(out, result, up, t[:, None], n[None, :], num_tokens, num_rows, GATED, HAS_ADD)


@triton.jit
def _columns(x, norm, column, HAS_NORM: tl.constexpr, WIDTH: tl.constexpr):
    """The token, and what it is scaled by once normalised, or the token again."""
    part = tl.load(x + column, mask=column < WIDTH, other=0)
    scale = part
    if HAS_NORM:
        scale = tl.load(norm + column, mask=column < WIDTH, other=0)
    return part, scale


@triton.jit
def _streamed(at, mask):
    """A tile of the weight, which no other program wants."""
    return tl.load(at, mask=mask, other=0, eviction_policy="evict_first")


@triton.jit
def _normed(part, inverse_rms, scale, HAS_NORM: tl.constexpr):
    """Float32, but normalised and rounded to its dtype, as kernels/gpu/rms_norm.py leaves it."""
    wide = part.to(tl.float32)
    if HAS_NORM:
        wide = (wide * inverse_rms * scale.to(tl.float32)).to(part.dtype).to(tl.float32)
    return wide


@triton.jit
def _finish(
    out, result, up, t, n, num_tokens, num_rows, GATED: tl.constexpr, HAS_ADD: tl.constexpr
):
    """Gates or adds float32 `result` [T, N], and stores it."""
    dtype = out.dtype.element_ty
    mask = (t < num_tokens) & (n < num_rows)
    to = out + t * num_rows + n
    if GATED:
        gate = result.to(dtype).to(tl.float32)  # as two kernels would
        result = gate / (1 + tl.exp(-gate)) * up.to(dtype).to(tl.float32)
    if HAS_ADD:
        result += tl.load(to, mask=mask, other=0).to(tl.float32)
    tl.store(to, result.to(dtype), mask=mask)
