"""Steps with prompt tokens as CUDA graphs: one launch for the forward of a chunk and of the rows
that decode beside it, or of such rows alone where a decode graph does not do all that their logits
want.

A forward of few tokens takes the device less time than the host needs to launch its kernels one by
one. So it is captured for some numbers of prompt tokens and of decoding rows; a step runs at the
next ones upwards. Padding is tokens of the dummy row that no row attends for, and decoding rows
that are the dummy row. What is sampled is up to the caller: it wants few kernels, and of the tokens
that sample alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from runnersvc.graph_capture import captured, up_to
from runnersvc.kv_cache import KVCache
from runnersvc.ops import Ops
from runnersvc.row_state import RowState
from runnersvc.step import Step
from runnersvc.step_arrays import SamplingArrays, StepArrays, step_of

LITERALS = (128, 256, 512, 1024, 2048, 4096)  # from here on the device takes longer than the host
DECODES = (0, 16, 64, 256)
MIN_PREFILLS, TOKENS_A_PREFILL = 16, 32  # rows that prefill: so many, or one for so many tokens

Shape: TypeAlias = tuple[int, int]  # decoding rows, prompt tokens


class ChunkGraphs:
    """Captured at start, largest first, so that the smaller ones live in the same memory."""

    def __init__(
        self,
        forward: Callable[[Step], Tensor],
        ops: Ops,
        row_state: RowState,
        kv_cache: KVCache,
        *,
        hidden_dim: int,
        heads: tuple[int, int],
        max_rows: int,
        max_tokens: int,
        pool: Any,
        only_largest: bool = False,
    ) -> None:
        self._forward, self._ops = forward, ops
        self._row_state, self._kv_cache = row_state, kv_cache
        self._dummy = kv_cache.dummy_table_idx
        self._num_rows = self._dummy
        self.literals = up_to(min(max_tokens, LITERALS[-1]), LITERALS) if max_rows else ()
        self.decodes = up_to(min(max_rows, self._num_rows), DECODES) if max_rows else ()
        self._graphs: dict[Shape, torch.cuda.CUDAGraph] = {}
        if not max_rows:
            return
        largest = self.decodes[-1], self.literals[-1]
        most, device = sum(largest), kv_cache.page_table.device
        self._inputs = [
            torch.empty(length, dtype=torch.int32, device=device) for length in self._lens(largest)
        ]
        like = kv_cache.buffer
        self._hidden = torch.zeros(most, hidden_dim, dtype=like.dtype, device=device)
        # Where no row attends it stays 0: what padding computes is finite.
        self._attended = torch.zeros(most, *heads, dtype=like.dtype, device=device)
        of_all = slice(-1, None) if only_largest else slice(None)
        for literals in reversed(self.literals[of_all]):
            for decodes in reversed(self.decodes[of_all]):
                shape = decodes, literals
                for given, padding in zip(
                    self._inputs_of(shape), self._padding(shape), strict=True
                ):
                    given.copy_(torch.from_numpy(padding))
                self._graphs[shape] = captured(partial(self._run, shape), pool)

    def hold(self, step: StepArrays) -> bool:
        """Whether there is a graph that the step fits into."""
        return self._shape_for(step) is not None

    def padded(
        self, step: StepArrays, sampling: SamplingArrays
    ) -> tuple[StepArrays, SamplingArrays]:
        """A step that they hold at the size of its graph, and its sampling tokens there."""
        shape = self._shape_for(step)
        assert shape is not None, "they hold the step"
        arrays = self._padding(shape)
        for array, given in zip(arrays, step, strict=True):
            array[: len(given)] = given
        num_decodes = len(step.decode_rows)
        moved = np.where(sampling.tokens < num_decodes, 0, shape[0] - num_decodes)
        tokens = (sampling.tokens + moved).astype(np.int32)
        return arrays, sampling._replace(tokens=tokens)

    def replay(self, staged: Sequence[Tensor]) -> Tensor:
        """The forward of a padded step, the fields of StepArrays on the device. Returns the hidden
        state of its tokens [T, hidden], a view that the next replay overwrites.
        """
        shape = len(staged[0]), len(staged[2])
        torch._foreach_copy_(self._inputs_of(shape), list(staged))  # its public name
        self._graphs[shape].replay()
        return self._hidden[: sum(shape)]

    def _shape_for(self, step: StepArrays) -> Shape | None:
        num_decodes, num_literals = len(step.decode_rows), len(step.literal_ids)
        if not self._graphs or num_decodes > self.decodes[-1]:
            return None
        decodes = self.decodes[bisect_left(self.decodes, num_decodes)]
        for literals in self.literals[bisect_left(self.literals, num_literals) :]:
            shape = decodes, literals
            if shape in self._graphs and len(step.prefill_rows) <= self._prefills(literals):
                return shape
        return None

    def _prefills(self, literals: int) -> int:
        """How many rows may prefill: each one more is work for attention, of nothing at all."""
        return min(self._num_rows, max(MIN_PREFILLS, literals // TOKENS_A_PREFILL))

    def _lens(self, shape: Shape) -> list[int]:
        """Of the fields of StepArrays."""
        decodes, literals = shape
        return [decodes] * 2 + [literals] * 3 + [self._prefills(literals)] * 3

    def _padding(self, shape: Shape) -> StepArrays:
        """Nothing but padding."""
        values = (self._dummy, 1, self._dummy, 0, 0, self._dummy, 0, 0)
        return StepArrays(
            *(
                np.full(length, value, dtype=np.int32)
                for length, value in zip(self._lens(shape), values, strict=True)
            )
        )

    def _inputs_of(self, shape: Shape) -> list[Tensor]:
        lens = self._lens(shape)
        return [given[:length] for given, length in zip(self._inputs, lens, strict=True)]

    def _run(self, shape: Shape) -> None:
        last_token, page_table = self._row_state.last_token, self._kv_cache.page_table
        count = sum(shape)
        step = step_of(
            self._inputs_of(shape), last_token, page_table, self._ops, self._attended[:count]
        )
        self._hidden[:count].copy_(self._forward(step))
