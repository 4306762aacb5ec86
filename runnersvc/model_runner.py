"""Executing plans on one device: rows, page table, forward, sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runnersvc.decode_graph import DecodeGraphs
from runnersvc.families import ModelSpec
from runnersvc.kv_cache import KVCache
from runnersvc.ops import ops_of
from runnersvc.row_state import RowState
from runnersvc.step import Step
from runnersvc.transformer import Transformer
from runnersvc.weights import Checkpoint
from servicekit.errors import SetupError
from servicekit.plan import Int32Array, Plan


class ModelRunner:
    """Owns everything on the device. Plans are trusted: whoever calls has refused the bad ones.

    The constructor reads the weights; SetupError if they do not fit `spec`. With `num_threads` it
    sets torch's number of threads, of the whole process. One thread at a time may call `execute`.
    """

    def __init__(
        self,
        model_dir: Path,
        spec: ModelSpec,
        *,
        dtype: torch.dtype,
        device: torch.device,
        num_pages: int,
        page_size: int,
        max_running_reqs: int,
        max_seq_len: int,
        num_threads: int | None = None,
    ) -> None:
        if max_seq_len > spec.max_position_embeddings:
            raise SetupError(
                f"max_seq_len is {max_seq_len}; the model was made for "
                f"{spec.max_position_embeddings} positions, lower it to that"
            )
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self._device = device
        self._ops = ops_of(device, page_size)
        with torch.inference_mode():
            with Checkpoint(model_dir, spec, dtype, device) as checkpoint:
                self._transformer = Transformer(spec, checkpoint, max_seq_len, self._ops)
            self._row_state = RowState(max_running_reqs, device)
            self._kv_cache = KVCache(
                num_layers=spec.num_layers,
                num_kv_heads=spec.num_kv_heads,
                head_dim=spec.head_dim,
                num_pages=num_pages,
                page_size=page_size,
                max_running_reqs=max_running_reqs,
                max_seq_len=max_seq_len,
                dtype=dtype,
                device=device,
                ops=self._ops,
            )
            self._graphs = self._captured() if device.type == "cuda" else None

    def _captured(self) -> DecodeGraphs:
        def forward(step: Step) -> Tensor:
            return self._transformer.forward(step, self._kv_cache)

        return DecodeGraphs(forward, self._ops, self._row_state, self._kv_cache)

    @torch.inference_mode()
    def execute(self, plan: Plan) -> Int32Array:
        """Applies the plan and returns the sampled ids, one for each sampling row in plan order."""
        self._row_state.open(plan.open_rows)
        self._kv_cache.write_table(plan.write_rows, plan.write_positions, plan.write_locs)
        if len(plan.step_rows) == 0:
            return np.empty(0, np.int32)
        if self._graphs is not None and _only_decodes(plan):
            lens = plan.step_cached_lens + 1
            rows_and_lens = torch.from_numpy(np.stack((plan.step_rows, lens))).to(self._device)
            graph_sampled: Int32Array = self._graphs.replay(rows_and_lens).int().cpu().numpy()
            return graph_sampled
        logits = self._transformer.forward(self._stage(plan), self._kv_cache)
        if len(logits) == 0:
            return np.empty(0, np.int32)
        return self._sample(plan, logits)

    def read_table(self) -> Int32Array:
        """[max_running_reqs + 1, width]: the loc of each position of each row, on the host; a view
        where the device is the CPU, else a copy.
        """
        page_table: Int32Array = self._kv_cache.page_table.cpu().numpy()
        return page_table

    def check_integrity(self) -> None:
        """Asserts what must hold between plans."""
        self._kv_cache.check_integrity()

    def _sample(self, plan: Plan, logits: Tensor) -> Int32Array:
        samples = plan.step_samples
        lens = plan.step_cached_lens[samples] + plan.step_extend_lens[samples]
        rows, positions = self._copy(plan.step_rows[samples], lens)
        chosen = self._row_state.sampling(rows)
        token_ids = self._ops.sample(logits, *chosen, positions)
        self._row_state.set_last_token(rows, token_ids)
        sampled: Int32Array = token_ids.int().cpu().numpy()
        return sampled

    def _stage(self, plan: Plan) -> Step:
        """Lays the step out as tensors; what comes from the host goes to the device in one copy."""
        cached_lens, extend_lens = plan.step_cached_lens, plan.step_extend_lens
        ends = np.cumsum(extend_lens, dtype=np.int32)  # of each row, among the T tokens
        of_row = np.repeat(np.arange(len(ends)), extend_lens)  # [T] which row of the step
        positions = np.arange(ends[-1], dtype=np.int32) + (cached_lens + extend_lens - ends)[of_row]
        decodes = extend_lens == 1
        (
            token_rows, token_positions, literal_tokens, literal_ids,
            decode_rows, decode_seq_lens, decode_tokens,
            prefill_rows, prefill_cached_lens, prefill_extend_lens, prefill_tokens,
            sampling_tokens,
        ) = self._copy(
            plan.step_rows[of_row], positions,
            np.flatnonzero(plan.step_num_literals[of_row]), plan.literal_ids,
            plan.step_rows[decodes], cached_lens[decodes] + 1,
            np.flatnonzero(decodes[of_row]),
            plan.step_rows[~decodes], cached_lens[~decodes], extend_lens[~decodes],
            np.flatnonzero(~decodes[of_row]),
            ends[plan.step_samples] - 1,
        )  # fmt: skip
        page_table = self._kv_cache.page_table
        token_ids = self._row_state.last_token.index_select(0, token_rows)
        token_ids[literal_tokens] = literal_ids
        return Step(
            token_ids=token_ids,
            positions=token_positions,
            out_locs=self._ops.read_page_table(page_table, token_rows, token_positions),
            decode_rows=decode_rows,
            decode_seq_lens=decode_seq_lens,
            decode_tokens=None if decodes.all() else decode_tokens,
            prefill_rows=prefill_rows,
            prefill_cached_lens=prefill_cached_lens,
            prefill_extend_lens=prefill_extend_lens,
            prefill_tokens=prefill_tokens if decodes.any() else None,
            sampling_tokens=sampling_tokens,
        )

    def _copy(self, *arrays: NDArray[np.integer[Any]]) -> tuple[Tensor, ...]:
        """The arrays, each [n] of its own length, as int32 tensors on the device, in one copy."""
        joined = np.concatenate(arrays, dtype=np.int32, casting="same_kind")
        staged = torch.from_numpy(joined).to(self._device)
        return torch.split(staged, [len(array) for array in arrays])


def _only_decodes(plan: Plan) -> bool:
    """Whether every row computes the token that it sampled last, and samples."""
    return len(plan.literal_ids) == 0 and bool(plan.step_samples.all())
