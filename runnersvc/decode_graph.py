"""Decode steps as CUDA graphs: one launch for a table write, a forward, sampling and what rows
remember of it.

A step of rows that all decode the token they sampled last, and sample again, needs no more from the
host than which rows, how long they are, and what to write to the page table: that waits in a ring
of pinned memory, which the graph reads and answers. All else is computed inside, from the page
table and the rows' state. Such a step runs at the next batch size that was captured, its padding on
the dummy row, whose length is 1 and whose last token stays 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.reference.step_ring import STEP_HEAD, StepRing
from runnersvc.graph_capture import captured, up_to
from runnersvc.kv_cache import KVCache
from runnersvc.ops import Ops
from runnersvc.row_state import RowState
from runnersvc.step import Step
from runnersvc.step_arrays import step_of
from servicekit.plan import Plan

BATCHES = (
    1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160, 176, 192, 208, 224, 256, 320, 384, 448, 512,
)  # fmt: skip


class DecodeGraphs:
    """Captured at start, largest first, so that the smaller ones live in the same memory; for
    `ring_len` steps under way at once. Replays are waited for in order.
    """

    def __init__(
        self,
        logits: Callable[[Step], Tensor],
        ops: Ops,
        row_state: RowState,
        kv_cache: KVCache,
        *,
        max_rows: int,
        ring_len: int,
        pool: Any,
        only_largest: bool = False,
    ) -> None:
        self._logits, self._ops = logits, ops
        self._row_state, self._kv_cache = row_state, kv_cache
        self._dummy = kv_cache.dummy_table_idx
        self._device = kv_cache.page_table.device
        most = min(self._dummy, max_rows)
        self.batches = up_to(most, BATCHES) if most else ()
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        if most:
            self._ring = self._make_ring(most, ring_len)
            self._rows, self._seq_lens = torch.zeros(
                2, most, dtype=torch.int32, device=self._device
            )
        for batch in self.batches[-1:] if only_largest else reversed(self.batches):
            self._graphs[batch] = captured(partial(self._run, batch), pool)
        if most:
            torch.cuda.synchronize()
            self._ring.turn.zero_()
        self._turn = 0  # as the device will have it after what was replayed

    def hold(self, num_rows: int) -> bool:
        """Whether a step of so many rows was captured."""
        return bool(self.batches) and num_rows <= self.batches[-1]

    def take_write(self, plan: Plan) -> bool:
        """Whether the table write of a plan whose rows they hold may come with the replay: it is
        no more than a page a row.
        """
        return len(plan.write_rows) <= self._max_writes(self._batch_of(plan))

    def replay(self, plan: Plan, *, with_write: bool) -> Tensor:
        """One step of a decode plan. Returns the pinned int32 [rows] that ids come to."""
        num_rows, batch = len(plan.step_rows), self._batch_of(plan)
        step, most = self._steps[self._turn], self._ring.max_rows
        rows, seq_lens = step[STEP_HEAD:], step[STEP_HEAD + most :]
        rows[:num_rows] = plan.step_rows
        rows[num_rows:batch] = self._dummy
        np.add(plan.step_cached_lens, 1, out=seq_lens[:num_rows])
        seq_lens[num_rows:batch] = 1
        count = step[0] = len(plan.write_rows) if with_write else 0
        if count:
            write = step[STEP_HEAD + 2 * most :].reshape(3, -1)
            write[0, :count] = plan.write_rows
            write[1, :count] = plan.write_positions
            write[2, :count] = plan.write_locs
        self._graphs[batch].replay()
        sampled = self._ring.sampled[self._turn, :num_rows]
        self._turn = (self._turn + 1) % len(self._steps)
        return sampled

    def _batch_of(self, plan: Plan) -> int:
        return self.batches[bisect_left(self.batches, len(plan.step_rows))]

    def _max_writes(self, batch: int) -> int:
        return batch * self._kv_cache.page_size

    def _make_ring(self, most: int, ring_len: int) -> StepRing:
        """Its steps are of dummy rows until the host writes others."""
        step_len = STEP_HEAD + 2 * most + 3 * self._max_writes(most)
        steps = torch.ones(ring_len, step_len, dtype=torch.int32, pin_memory=True)
        steps[:, 0] = 0
        steps[:, STEP_HEAD : STEP_HEAD + most] = self._dummy
        sampled = torch.zeros(ring_len, most, dtype=torch.int32, pin_memory=True)
        self._steps = steps.numpy()
        return StepRing(steps, sampled, torch.zeros(1, dtype=torch.int32, device=self._device))

    def _run(self, batch: int) -> None:
        ops, page_table = self._ops, self._kv_cache.page_table
        rows, seq_lens = self._rows[:batch], self._seq_lens[:batch]
        ops.take_step(self._ring, rows, seq_lens, page_table, max_writes=self._max_writes(batch))
        last_token, nothing = self._row_state.last_token, rows[:0]
        step = step_of((rows, seq_lens, *[nothing] * 6), last_token, page_table, ops)
        logits = self._logits(step)
        is_broken = torch.empty(batch, dtype=torch.bool, device=self._device)
        sampled = ops.sample(
            logits, *self._row_state.sampling, seq_lens, rows=rows, is_broken=is_broken
        )
        ops.give_sampled(self._ring, rows, sampled, is_broken, last_token)
