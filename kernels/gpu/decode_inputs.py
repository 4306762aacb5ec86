"""What rows that decode compute: the token that each sampled last, at its end."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import OVERLAP, begin_program

BLOCK_N = 128  # rows a program


def decode_inputs(
    last_token: Tensor, page_table: Tensor, rows: Tensor, seq_lens: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As `kernels.reference.decode_inputs.decode_inputs`, in one launch."""
    n = len(rows)
    token_ids, positions = torch.empty_like(rows), torch.empty_like(rows)
    out_locs = torch.empty(n, dtype=torch.int64, device=rows.device)
    decode_inputs_kernel[(triton.cdiv(n, BLOCK_N),)](
        last_token, page_table, rows, seq_lens, token_ids, positions, out_locs, n,
        page_table.stride(0), BLOCK_N, num_warps=4, **OVERLAP,
    )  # fmt: skip
    return token_ids, positions, out_locs


@triton.jit(do_not_specialize=["n"])
def decode_inputs_kernel(
    last_token,
    page_table,
    rows,
    seq_lens,
    token_ids,
    positions,
    out_locs,
    n,
    WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    begin_program()
    i = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = i < n
    row = tl.load(rows + i, mask=mask, other=0).to(tl.int64)
    position = tl.load(seq_lens + i, mask=mask, other=1) - 1
    tl.store(token_ids + i, tl.load(last_token + row, mask=mask, other=0), mask=mask)
    tl.store(positions + i, position, mask=mask)
    loc = tl.load(page_table + row * WIDTH + position, mask=mask, other=0)
    tl.store(out_locs + i, loc.to(tl.int64), mask=mask)
