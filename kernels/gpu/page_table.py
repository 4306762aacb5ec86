"""The page table: which loc holds each position of each row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import OVERLAP, begin_program

BLOCK_N = 256  # entries a program


def scatter_page_table(page_table: Tensor, rows: Tensor, positions: Tensor, locs: Tensor) -> None:
    """Writes `page_table[rows[i], positions[i]] = locs[i]` for all i, in place.

    `page_table` is int32 [max_running_reqs + 1, width]; the other three are int32 [n]. No (row,
    position) may come twice: which of the two would win is undefined.
    """
    n = len(rows)
    if n == 0:
        return
    scatter_kernel[(triton.cdiv(n, BLOCK_N),)](
        page_table,
        rows,
        positions,
        locs,
        n,
        page_table.stride(0),
        BLOCK_N,
        num_warps=4,
        **OVERLAP,
    )


def read_page_table(page_table: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
    """The locs `page_table[rows[i], positions[i]]`, int64 [n]; of new tokens, their out_locs."""
    n = len(rows)
    locs = torch.empty(n, dtype=torch.int64, device=page_table.device)
    if n:
        gather_kernel[(triton.cdiv(n, BLOCK_N),)](
            page_table,
            rows,
            positions,
            locs,
            n,
            page_table.stride(0),
            BLOCK_N,
            num_warps=4,
            **OVERLAP,
        )
    return locs


@triton.jit(do_not_specialize=["n"])
def scatter_kernel(
    page_table, rows, positions, locs, n, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr
):
    begin_program()
    i = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = i < n
    row = tl.load(rows + i, mask=mask, other=0).to(tl.int64)
    position = tl.load(positions + i, mask=mask, other=0)
    loc = tl.load(locs + i, mask=mask, other=0)
    tl.store(page_table + row * WIDTH + position, loc, mask=mask)


@triton.jit(do_not_specialize=["n"])
def gather_kernel(page_table, rows, positions, locs, n, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr):
    begin_program()
    i = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = i < n
    row = tl.load(rows + i, mask=mask, other=0).to(tl.int64)
    position = tl.load(positions + i, mask=mask, other=0)
    loc = tl.load(page_table + row * WIDTH + position, mask=mask, other=0)
    tl.store(locs + i, loc.to(tl.int64), mask=mask)
