"""The gate of the feed-forward part (SwiGLU, Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import OVERLAP, begin_program

BLOCK_W = 1024


def silu_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` [T, n], where contiguous `gate_up` [T, 2 * n] has the gates first.

    Float32 inside.
    """
    num_tokens, twice = gate_up.shape
    width = twice // 2
    out = torch.empty(num_tokens, width, dtype=gate_up.dtype, device=gate_up.device)
    assert gate_up.is_contiguous()
    if num_tokens:
        silu_mul_kernel[(num_tokens, triton.cdiv(width, BLOCK_W))](
            out,
            gate_up,
            width,
            BLOCK_W,
            num_warps=4,
            **OVERLAP,
        )
    return out


@triton.jit
def silu_mul_kernel(out, gate_up, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr):
    begin_program()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    mask = column < WIDTH
    gates = gate_up + token * (2 * WIDTH)
    gate = tl.load(gates + column, mask=mask, other=0).to(tl.float32)
    up = tl.load(gates + WIDTH + column, mask=mask, other=0).to(tl.float32)
    gated = gate / (1 + tl.exp(-gate)) * up
    tl.store(out + token * WIDTH + column, gated.to(out.dtype.element_ty), mask=mask)
