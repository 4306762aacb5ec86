"""Decode steps as CUDA graphs: one launch for a forward, sampling and what rows remember of it.

A step of rows that all decode the token they sampled last, and sample again, needs no more from the
host than which rows, and how long they are: everything else is computed inside, from the page table
and the rows' state. Such a step runs at the next batch size that was captured, its padding on the
dummy row, whose length is 1 and whose last token stays 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runnersvc.kv_cache import KVCache
from runnersvc.ops import Ops
from runnersvc.row_state import RowState
from runnersvc.step import Step
from servicekit.plan import Int32Array, Plan

BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)
WARM_UPS = 2  # runs before a capture: they compile kernels, and let libraries set themselves up


class DecodeGraphs:
    """Captured at start, largest first, so that the smaller ones live in the same memory."""

    def __init__(
        self,
        forward: Callable[[Step], Tensor],
        ops: Ops,
        row_state: RowState,
        kv_cache: KVCache,
        max_rows: int,
    ) -> None:
        self._forward, self._ops = forward, ops
        self._row_state, self._kv_cache = row_state, kv_cache
        self._dummy = kv_cache.dummy_table_idx
        most = min(self._dummy, max_rows)
        self.batches = (*(batch for batch in BATCHES if batch < most), most) if most else ()
        device = kv_cache.page_table.device
        self._rows = torch.full((most,), self._dummy, dtype=torch.int32, device=device)
        self._seq_lens = torch.ones(most, dtype=torch.int32, device=device)
        self._sampled = torch.zeros(most, dtype=torch.int32, device=device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        pool: Any = None
        for batch in reversed(self.batches):
            self._graphs[batch] = self._capture(batch, pool)
            pool = pool or self._graphs[batch].pool()

    def hold(self, num_rows: int) -> bool:
        """Whether a step of so many rows was captured."""
        return bool(self.batches) and num_rows <= self.batches[-1]

    def arrays(self, plan: Plan) -> tuple[Int32Array, Int32Array]:
        """What `replay` needs of a decode plan: table_idxs, and lengths with the new token, each
        int32 [batch], padded with the dummy row.
        """
        num_rows = len(plan.step_rows)
        batch = self.batches[bisect_left(self.batches, num_rows)]
        rows = np.full(batch, self._dummy, dtype=np.int32)
        seq_lens = np.ones(batch, dtype=np.int32)
        rows[:num_rows] = plan.step_rows
        seq_lens[:num_rows] += plan.step_cached_lens
        return rows, seq_lens

    def replay(self, rows: Tensor, seq_lens: Tensor) -> Tensor:
        """One step of padded rows, as `arrays` has them. Returns their sampled ids, int32 [batch],
        a view that the next replay overwrites.
        """
        batch = len(rows)
        self._rows[:batch] = rows
        self._seq_lens[:batch] = seq_lens
        self._graphs[batch].replay()
        return self._sampled[:batch]

    def _capture(self, batch: int, pool: Any) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self._run(batch)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self._run(batch)
        return graph

    def _run(self, batch: int) -> None:
        rows, seq_lens = self._rows[:batch], self._seq_lens[:batch]
        nothing = rows[:0]
        token_ids, positions, out_locs = self._ops.decode_inputs(
            self._row_state.last_token, self._kv_cache.page_table, rows, seq_lens
        )
        step = Step(
            token_ids=token_ids,
            positions=positions,
            out_locs=out_locs,
            decode_rows=rows,
            decode_seq_lens=seq_lens,
            decode_tokens=None,
            prefill_rows=nothing,
            prefill_cached_lens=nothing,
            prefill_extend_lens=nothing,
            prefill_tokens=None,
            sampling_tokens=None,
        )
        logits = self._forward(step)
        sampled = self._ops.sample(logits, *self._row_state.sampling, seq_lens, rows=rows)
        last_token = self._row_state.last_token
        self._ops.remember(last_token, rows, sampled, self._sampled[:batch])
