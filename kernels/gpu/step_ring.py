"""Decode steps that wait in host memory: what the device takes from there, and what it answers.

A CUDA graph reads and writes the same addresses each time. These two kernels, its first and its
last, go over to the next step of a ring each time they run, so that the host fills one while the
device is at another; no copy is enqueued for either. Loads from the host bypass the caches.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import OVERLAP, begin_program
from kernels.reference.step_ring import STEP_HEAD, StepRing

BLOCK_N = 256  # table entries a program
_HEAD = tl.constexpr(STEP_HEAD)


def take_step(
    ring: StepRing, rows: Tensor, seq_lens: Tensor, page_table: Tensor, *, max_writes: int
) -> None:
    """As `kernels.reference.step_ring.take_step`, in one launch."""
    batch = len(rows)
    take_kernel[(max(1, triton.cdiv(max_writes, BLOCK_N)),)](
        ring.steps, ring.turn, rows, seq_lens, page_table, batch,
        ring.steps.stride(0), page_table.stride(0), ring.max_rows, ring.max_writes,
        BLOCK_N, triton.next_power_of_2(batch), num_warps=4, **OVERLAP,
    )  # fmt: skip


def give_sampled(
    ring: StepRing, rows: Tensor, token_ids: Tensor, is_broken: Tensor, last_token: Tensor
) -> None:
    """As `kernels.reference.step_ring.give_sampled`, in one launch."""
    batch = len(rows)
    give_kernel[(1,)](
        ring.sampled, ring.turn, rows, token_ids, is_broken, last_token, batch, len(last_token) - 1,
        len(ring.sampled), ring.max_rows, triton.next_power_of_2(batch), num_warps=4, **OVERLAP,
    )  # fmt: skip


@triton.jit(do_not_specialize=["batch"])
def take_kernel(
    steps,
    turn,
    rows,
    seq_lens,
    page_table,
    batch,
    STEP_WIDTH: tl.constexpr,
    TABLE_WIDTH: tl.constexpr,
    MAX_ROWS: tl.constexpr,
    MAX_WRITES: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    begin_program()
    step = steps + tl.load(turn) * STEP_WIDTH
    num_writes = tl.load(step, cache_modifier=".cv")
    if tl.program_id(0) == 0:
        b = tl.arange(0, BLOCK_B)
        mask = b < batch
        table_idx = tl.load(step + _HEAD + b, mask=mask, cache_modifier=".cv")
        seq_len = tl.load(step + _HEAD + MAX_ROWS + b, mask=mask, cache_modifier=".cv")
        tl.store(rows + b, table_idx, mask=mask)
        tl.store(seq_lens + b, seq_len, mask=mask)
    i = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = i < num_writes
    write = step + _HEAD + 2 * MAX_ROWS + i
    row = tl.load(write, mask=mask, other=0, cache_modifier=".cv").to(tl.int64)
    position = tl.load(write + MAX_WRITES, mask=mask, other=0, cache_modifier=".cv")
    loc = tl.load(write + 2 * MAX_WRITES, mask=mask, other=0, cache_modifier=".cv")
    tl.store(page_table + row * TABLE_WIDTH + position, loc, mask=mask)


@triton.jit(do_not_specialize=["batch", "dummy_row"])
def give_kernel(
    sampled,
    turn,
    rows,
    token_ids,
    is_broken,
    last_token,
    batch,
    dummy_row,
    RING_LEN: tl.constexpr,
    MAX_ROWS: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """One program: it passes the turn on when all of it has read it."""
    begin_program()
    at = tl.load(turn)
    b = tl.arange(0, BLOCK_B)
    mask = b < batch
    row = tl.load(rows + b, mask=mask, other=0)
    token_id = tl.load(token_ids + b, mask=mask, other=0).to(tl.int32)
    broken = tl.load(is_broken + b, mask=mask, other=0) != 0
    tl.store(sampled + at * MAX_ROWS + b, tl.where(broken, -1, token_id), mask=mask)
    tl.store(last_token + row, token_id, mask=mask & (row != dummy_row))
    tl.debug_barrier()
    tl.store(turn, (at + 1) % RING_LEN)
