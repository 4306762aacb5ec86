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

import torch
from torch import Tensor

from runnersvc.kv_cache import KVCache
from runnersvc.ops import Ops
from runnersvc.row_state import RowState
from runnersvc.step import Step

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
    ) -> None:
        self._forward, self._ops = forward, ops
        self._row_state, self._kv_cache = row_state, kv_cache
        self._dummy = kv_cache.dummy_table_idx
        most = max(self._dummy, 1)
        self.batches = (*(batch for batch in BATCHES if batch < most), most)
        device = kv_cache.page_table.device
        self._rows = torch.full((most,), self._dummy, dtype=torch.int32, device=device)
        self._seq_lens = torch.ones(most, dtype=torch.int32, device=device)
        self._sampled = torch.zeros(most, dtype=torch.int64, device=device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        pool: Any = None
        for batch in reversed(self.batches):
            self._graphs[batch] = self._capture(batch, pool)
            pool = pool or self._graphs[batch].pool()

    def replay(self, rows_and_lens: Tensor) -> Tensor:
        """One step of rows, int32 [2, n]: table_idxs, and lengths with the new token. Returns their
        sampled ids, int64 [n], a view that the next replay overwrites.
        """
        num_rows = rows_and_lens.shape[1]
        batch = self.batches[bisect_left(self.batches, num_rows)]
        self._rows[:num_rows], self._seq_lens[:num_rows] = rows_and_lens
        self._rows[num_rows:batch] = self._dummy
        self._seq_lens[num_rows:batch] = 1
        self._graphs[batch].replay()
        return self._sampled[:num_rows]

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
        positions = seq_lens - 1
        nothing = rows[:0]
        step = Step(
            token_ids=self._row_state.last_token.index_select(0, rows),
            positions=positions,
            out_locs=self._ops.read_page_table(self._kv_cache.page_table, rows, positions),
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
        chosen = self._row_state.sampling(rows)
        token_ids = self._ops.sample(logits, *chosen, seq_lens)
        self._sampled[:batch] = token_ids
        kept = torch.where(rows == self._dummy, 0, token_ids)
        self._row_state.set_last_token(rows, kept)
