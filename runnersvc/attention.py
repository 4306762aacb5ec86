"""Attention of one step: what all its layers share is worked out once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from runnersvc.families import ModelSpec
from runnersvc.ops import AttentionShape, Ops
from runnersvc.step import Step


class StepAttention:
    """Calls the attention of each of the two kinds of rows, decode and prefill, once a layer."""

    def __init__(
        self, ops: Ops, spec: ModelSpec, step: Step, page_table: Tensor, dtype: torch.dtype
    ) -> None:
        self._ops, self._step, self._page_table = ops, step, page_table
        self._scale = 1 / math.sqrt(spec.head_dim)
        self._decode_rows = step.decode_rows, step.decode_seq_lens
        self._prefill_rows = step.prefill_rows, step.prefill_cached_lens, step.prefill_extend_lens
        num_decode = len(step.decode_rows)
        num_prefill = len(step.token_ids) - num_decode
        heads = spec.num_heads, spec.num_kv_heads, spec.head_dim
        device = page_table.device
        self._decode_plan = self._prefill_plan = {}
        if num_decode:
            shape = AttentionShape(num_decode, *heads, dtype, device)
            self._decode_plan = ops.plan_decode(shape, *self._decode_rows)
        if num_prefill:
            shape = AttentionShape(num_prefill, *heads, dtype, device)
            self._prefill_plan = ops.plan_prefill(shape, *self._prefill_rows)

    def __call__(self, q: Tensor, caches: tuple[Tensor, Tensor]) -> Tensor:
        """Of `q` [T, num_heads, head_dim], over a layer's K and V by loc; the like of it."""
        step = self._step
        if step.decode_tokens is None:
            return self._decode(q, caches)
        if step.prefill_tokens is None:
            return self._prefill(q, caches)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        out[step.decode_tokens] = self._decode(q[step.decode_tokens], caches)
        out[step.prefill_tokens] = self._prefill(q[step.prefill_tokens], caches)
        return out

    def _decode(self, q: Tensor, caches: tuple[Tensor, Tensor]) -> Tensor:
        return self._ops.decode_attention(
            q, *caches, self._page_table, *self._decode_rows, self._scale, **self._decode_plan
        )

    def _prefill(self, q: Tensor, caches: tuple[Tensor, Tensor]) -> Tensor:
        return self._ops.prefill_attention(
            q, *caches, self._page_table, *self._prefill_rows, self._scale, **self._prefill_plan
        )
