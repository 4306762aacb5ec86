"""Who reads what in decode attention: the tiles of all rows, cut into equal runs on the device.

Rows of any lengths are one long list of tiles, BLOCK_N positions each. Every worker takes the same
number of consecutive tiles, so none waits for another; a row's tiles may end up with several
workers, whose partial results are combined (the "stream-K" partition: Osama et al. 2023,
arXiv:2301.03598; for decode attention Sanovar et al. 2024, arXiv:2405.10480). A plan depends on
lengths alone: one kernel a step, used by every layer, with a grid and tensors of fixed shape.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import OVERLAP, begin_program

RECORD_WORDS = tl.constexpr(8)  # of a worker's record; words past the fifth are unused
_PLAN_ELEMENTS = 4096  # rows times workers that one program compares


class DecodePlan(NamedTuple):
    """The partition of one step. Both tensors are int32, written on the device.

    `workers` [W, 8] has of each worker: the row and the tile inside it where it begins, how many
    tiles it reads (0: none), that row's seq_len and table_idx. When its run passes the end of a row
    it goes on with tile 0 of the next. `rows` [B, 2] has the first worker of each row and how many
    share it. What a worker leaves of a row that it shares is partial result number 2 * worker,
    plus 1 where it began at the row's first tile.
    """

    workers: Tensor
    rows: Tensor


def empty_plan(num_reqs: int, num_workers: int, device: torch.device | str) -> DecodePlan:
    """Room for the plan of `num_reqs` rows."""
    words = int(RECORD_WORDS.value)
    return DecodePlan(
        torch.empty(num_workers, words, dtype=torch.int32, device=device),
        torch.empty(num_reqs, 2, dtype=torch.int32, device=device),
    )


def plan_decode(
    plan: DecodePlan, table_idxs: Tensor, seq_lens: Tensor, *, tile_len: int, min_tiles: int = 1
) -> None:
    """Writes the partition of rows of `seq_lens` [B] >= 1 into `plan`, with no synchronisation.

    `tile_len` is what the attention kernel reads at once, in tokens. A worker takes `min_tiles` or
    more, unless nothing is left. `table_idxs` [B] are copied into the workers' records.
    """
    num_reqs, num_workers = len(seq_lens), len(plan.workers)
    assert len(plan.rows) == num_reqs == len(table_idxs), "a plan is made for its number of rows"
    padded_reqs = triton.next_power_of_2(num_reqs)
    together = min(64, max(1, _PLAN_ELEMENTS // padded_reqs))
    plan_kernel[(triton.cdiv(num_workers, together),)](
        seq_lens,
        table_idxs,
        plan.workers,
        plan.rows,
        num_reqs,
        num_workers,
        min_tiles,
        BLOCK_N=tile_len,
        BLOCK_B=padded_reqs,
        BLOCK_W=together,
        **OVERLAP,
    )


@triton.jit(do_not_specialize=["num_reqs", "num_workers", "min_tiles"])
def plan_kernel(
    seq_lens,
    table_idxs,
    workers,
    rows,
    num_reqs,
    num_workers,
    min_tiles,
    BLOCK_N: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """A program writes the records of BLOCK_W workers; the first one those of the rows as well."""
    begin_program()
    b = tl.arange(0, BLOCK_B)
    inside = b < num_reqs
    tiles = tl.cdiv(tl.load(seq_lens + b, mask=inside, other=0).to(tl.int32), BLOCK_N)
    ends = tl.cumsum(tiles, 0)
    total = tl.sum(tiles, 0)
    run = tl.maximum(tl.cdiv(total, num_workers), min_tiles)
    if tl.program_id(0) == 0:
        first = (ends - tiles) // run
        tl.store(rows + b * 2, first, mask=inside)
        tl.store(rows + b * 2 + 1, (ends - 1) // run - first + 1, mask=inside)

    w = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    begin = w * run
    before = ends[None, :] <= begin[:, None]  # [BLOCK_W, BLOCK_B]
    row = tl.minimum(tl.sum(before.to(tl.int32), 1), num_reqs - 1)
    tile = begin - tl.sum(tl.where(before, tiles[None, :], 0), 1)
    count = tl.minimum(tl.maximum(total - begin, 0), run)
    record = workers + w * RECORD_WORDS
    exists = w < num_workers
    tl.store(record, row, mask=exists)
    tl.store(record + 1, tile, mask=exists)
    tl.store(record + 2, count, mask=exists)
    tl.store(record + 3, tl.load(seq_lens + row).to(tl.int32), mask=exists)
    tl.store(record + 4, tl.load(table_idxs + row).to(tl.int32), mask=exists)
