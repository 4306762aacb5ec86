"""Root mean square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import OVERLAP, begin_program

_WIDE = 2048  # columns from which on 8 warps share a row


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x**2) + eps) * weight` of contiguous `x` [T, n]; float32 inside."""
    return _launch(x, x, weight, eps, has_delta=False)


def add_rms_norm(residual: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Adds `delta` to `residual` in place, both contiguous [T, n]; returns the sum's `rms_norm`.

    The sum is rounded to its dtype before it is normalised, as if the two were done in turn.
    """
    assert delta.is_contiguous()
    assert delta.shape == residual.shape
    return _launch(residual, delta, weight, eps, has_delta=True)


def _launch(x: Tensor, delta: Tensor, weight: Tensor, eps: float, *, has_delta: bool) -> Tensor:
    assert x.is_contiguous()
    num_tokens, width = x.shape
    out = torch.empty_like(x)
    if num_tokens:
        rms_norm_kernel[(num_tokens,)](
            out, x, delta, weight, eps, has_delta, width, triton.next_power_of_2(width),
            num_warps=8 if width >= _WIDE else 4, **OVERLAP,
        )  # fmt: skip
    return out


@triton.jit
def rms_norm_kernel(
    out, x, delta, weight, eps, HAS_DELTA: tl.constexpr, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr
):
    begin_program()
    first = tl.program_id(0).to(tl.int64) * WIDTH
    column = tl.arange(0, BLOCK_W)
    mask = column < WIDTH
    scale = tl.load(weight + column, mask=mask, other=0).to(tl.float32)
    row = tl.load(x + first + column, mask=mask, other=0).to(tl.float32)
    if HAS_DELTA:
        row += tl.load(delta + first + column, mask=mask, other=0).to(tl.float32)
        total = row.to(x.dtype.element_ty)
        tl.store(x + first + column, total, mask=mask)
        row = total.to(tl.float32)
    normed = row * tl.rsqrt(tl.sum(row * row, axis=0) / WIDTH + eps) * scale
    tl.store(out + first + column, normed.to(out.dtype.element_ty), mask=mask)
