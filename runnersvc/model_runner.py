"""Executing plans on one device: rows, page table, forward, sampling."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from runnersvc.capacity import Capacity
from runnersvc.chunk_graph import ChunkGraphs
from runnersvc.decode_graph import DecodeGraphs
from runnersvc.executor import AtOnce, Launched
from runnersvc.families import ModelSpec
from runnersvc.in_flight import RING_LEN, FlightRing, Sampled
from runnersvc.kv_cache import KVCache
from runnersvc.memory import MemoryUse, PoolChoice
from runnersvc.ops import ops_of
from runnersvc.plan_arrays import PlanArrays, StagedPlan, WriteArrays
from runnersvc.row_rules import RowRulesState, opened_rules
from runnersvc.row_state import RowState, opened_rows
from runnersvc.step import Step
from runnersvc.step_arrays import step_arrays, step_of
from runnersvc.transformer import Transformer
from runnersvc.trial import largest_plan
from runnersvc.weights import Weights
from servicekit.errors import SetupError
from servicekit.plan import Int32Array, Plan


class ModelRunner:
    """Owns everything on the device. Plans are trusted: whoever calls has refused the bad ones.

    The constructor takes over `weights`, and on a GPU tries the largest step and captures graphs
    before it makes the page pool. One thread at a time may launch. Errors: SetupError when the
    model is not made for so many positions, or memory does not suffice.
    """

    def __init__(
        self,
        weights: Weights,
        spec: ModelSpec,
        capacity: Capacity,
        pool: PoolChoice,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        if capacity.max_seq_len > spec.max_position_embeddings:
            raise SetupError(
                f"max_seq_len is {capacity.max_seq_len}; the model was made for "
                f"{spec.max_position_embeddings} positions, lower it to that"
            )
        self._spec, self._capacity = spec, capacity
        self._dtype, self._device = dtype, device
        self._ops = ops_of(device, capacity.page_size)
        self._flights: FlightRing | None = None  # None: the CPU executes while it launches
        with torch.inference_mode():
            self._row_state = RowState(capacity.max_running_reqs, device)
            self._row_rules = RowRulesState(
                capacity.max_running_reqs, spec.vocab_size, device, self._ops
            )
            self._transformer = Transformer(spec, weights, capacity.max_seq_len, self._ops)
            if device.type == "cuda":
                self._flights = FlightRing(capacity.max_running_reqs, device)
            page_bytes = capacity.page_size * spec.token_bytes(dtype.itemsize)
            use = self._tried() if device.type == "cuda" else None
            self._make_pool(pool.num_pages_of(capacity.page_size, page_bytes, use))

    @property
    def num_pages(self) -> int:
        """Pages that may be given out."""
        return self._kv_cache.num_pages

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Launched:
        """Enqueues what the plan says; on a CPU executes it. Blocks while IN_FLIGHT plans have not
        been waited for.
        """
        if self._flights is None:
            return self._at_once(plan)
        flight = self._flights.take()
        if self._decode_graphs_hold(plan):
            with_write = not plan.open_rows and self._decode_graphs.take_write(plan)
            if not with_write:
                self._apply_rows(self._row_arrays(plan).moved(flight.stage))
            flight.begin()
            flight.end_graph(self._decode_graphs.replay(plan, with_write=with_write))
        else:
            arrays, from_graph = self._arrays(plan)
            staged = arrays.moved(flight.stage)
            flight.begin()
            sampled = self._apply(plan, staged, from_graph=from_graph)
            flight.end(sampled, from_graph=from_graph)
        return flight

    def execute(self, plan: Plan) -> Int32Array:
        """Executes the plan to its end. Returns the sampled ids, one for each sampling row in plan
        order.
        """
        return self.launch(plan).wait().sampled_ids

    def _at_once(self, plan: Plan) -> AtOnce:
        began = time.perf_counter()
        arrays, from_graph = self._arrays(plan)
        sampled = self._apply(plan, arrays.moved(_as_tensors), from_graph=from_graph)
        logprobs = None
        if sampled.wish is not None and sampled.logprob_words is not None:
            logprobs = sampled.wish.read(sampled.logprob_words.numpy())
        return AtOnce(sampled.ids.numpy(), began, logprobs)

    def read_table(self) -> Int32Array:
        """[max_running_reqs + 1, width]: the loc of each position of each row, on the host; a view
        where the device is the CPU, else a copy.
        """
        page_table: Int32Array = self._kv_cache.page_table.cpu().numpy()
        return page_table

    def check_integrity(self) -> None:
        """Asserts what must hold between plans."""
        self._kv_cache.check_integrity()

    def _decode_graphs_hold(self, plan: Plan) -> bool:
        """Whether one of them does all that the plan's step asks for."""
        return (
            plan.only_decodes
            and self._decode_graphs.hold(len(plan.step_rows))
            and not self._row_rules.of_any(plan.step_rows)
        )

    def _row_arrays(self, plan: Plan) -> PlanArrays:
        """Rows that open, and the table write."""
        opens = plan.open_rows
        return PlanArrays(
            opened_rows(opens),
            WriteArrays(plan.write_rows, plan.write_positions, plan.write_locs),
            opened_rules(opens) if self._row_rules.concern(opens) else None,
        )

    def _arrays(self, plan: Plan) -> tuple[PlanArrays, bool]:
        """All that the device needs of a plan, and whether a graph has its forward."""
        arrays = self._row_arrays(plan)
        if not len(plan.step_rows):
            return arrays, False
        step, sampling = step_arrays(plan)
        from_graph = self._chunk_graphs.hold(step)
        if from_graph:
            step, sampling = self._chunk_graphs.padded(step, sampling)
        return replace(arrays, step=step, sampling=sampling), from_graph

    def _apply_rows(self, staged: StagedPlan) -> None:
        self._row_state.open(*staged.opened)
        if staged.rules is not None:
            self._row_rules.open(*staged.rules)
        self._kv_cache.write_table(*staged.write)

    def _apply(self, plan: Plan, staged: StagedPlan, *, from_graph: bool) -> Sampled:
        """Enqueues it all."""
        self._apply_rows(staged)
        last_token = self._row_state.last_token
        if staged.step is None or staged.sampling is None:
            return Sampled(last_token[:0])
        if from_graph:
            hidden = self._chunk_graphs.replay(staged.step)
        else:
            page_table = self._kv_cache.page_table
            hidden = self._forward(step_of(staged.step, last_token, page_table, self._ops))
        tokens, rows, positions = staged.sampling
        if len(rows) == 0:
            return Sampled(last_token[:0])
        logits = self._transformer.logits(hidden.index_select(0, tokens))
        is_broken = torch.empty(len(rows), dtype=torch.bool, device=self._device)
        sampling_rows, rules = plan.step_rows[plan.step_samples], self._row_rules
        has_rules = rules.of_any(sampling_rows)
        obeyed = rules.adjusted(logits, rows, positions) if has_rules else {}
        token_ids = self._ops.sample(
            logits, *self._row_state.sampling, positions, rows=rows, is_broken=is_broken, **obeyed
        ).int()
        last_token[rows] = token_ids
        ids = token_ids.masked_fill(is_broken, -1)
        if not has_rules:
            return Sampled(ids)
        rules.count(rows, token_ids)
        if (wish := rules.wish_of(sampling_rows)) is None:
            return Sampled(ids)
        return Sampled(ids, wish, rules.logprobs(wish, logits, rows, token_ids))

    def _make_pool(self, num_pages: int, *, only_largest: bool = False) -> None:
        """The pool and the graphs over it; for a trial `only_largest` graphs, whose memory the
        smaller ones live in.
        """
        spec, capacity = self._spec, self._capacity
        self._kv_cache = KVCache(
            num_layers=spec.num_layers,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            num_pages=num_pages,
            page_size=capacity.page_size,
            max_running_reqs=capacity.max_running_reqs,
            max_seq_len=capacity.max_seq_len,
            dtype=self._dtype,
            device=self._device,
            ops=self._ops,
        )
        max_graph_rows, graph_pool = 0, None
        if self._flights is not None:
            max_graph_rows, graph_pool = capacity.max_graph_rows, torch.cuda.graph_pool_handle()
        state = self._ops, self._row_state, self._kv_cache
        self._chunk_graphs = ChunkGraphs(
            self._forward,
            *state,
            hidden_dim=spec.hidden_dim,
            heads=(spec.num_heads, spec.head_dim),
            max_rows=max_graph_rows,
            max_tokens=capacity.max_step_tokens,
            pool=graph_pool,
            only_largest=only_largest,
        )
        self._decode_graphs = DecodeGraphs(
            self._logits,
            *state,
            max_rows=max_graph_rows,
            ring_len=RING_LEN,
            pool=graph_pool,
            only_largest=only_largest,
        )

    def _forward(self, step: Step) -> Tensor:
        return self._transformer.forward(step, self._kv_cache)

    def _logits(self, step: Step) -> Tensor:
        return self._transformer.logits(self._forward(step))

    def _tried(self) -> MemoryUse:
        """What the card has to hold beside the pool: the largest graphs are captured, and the
        largest step is run without one, on a pool of one page, which is then given up.
        """
        torch.cuda.empty_cache()
        weights_bytes = torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        self._make_pool(1, only_largest=True)
        graphs_bytes = torch.cuda.memory_reserved() - weights_bytes
        self.execute(largest_plan(self._capacity))
        step_bytes = torch.cuda.max_memory_reserved() - graphs_bytes - weights_bytes
        del self._kv_cache, self._chunk_graphs, self._decode_graphs
        gc.collect()
        torch.cuda.empty_cache()
        free_bytes, card_bytes = torch.cuda.mem_get_info()
        return MemoryUse(card_bytes, free_bytes, weights_bytes, step_bytes, graphs_bytes)


def _as_tensors(arrays: Sequence[Int32Array]) -> Sequence[Tensor]:
    joined = torch.from_numpy(np.concatenate(arrays))
    return torch.split(joined, [len(array) for array in arrays])
