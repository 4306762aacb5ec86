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
        self._num_decode = len(step.decode_rows)
        self._num_prefill = len(step.token_ids) - self._num_decode
        heads = spec.num_heads, spec.num_kv_heads, spec.head_dim
        device = page_table.device
        self._decode_plan = self._prefill_plan = {}
        if self._num_decode:
            shape = AttentionShape(self._num_decode, *heads, dtype, device)
            self._decode_plan = ops.plan_decode(shape, *self._decode_rows)
        if self._num_prefill:
            shape = AttentionShape(self._num_prefill, *heads, dtype, device)
            self._prefill_plan = ops.plan_prefill(shape, *self._prefill_rows)

    def __call__(self, q: Tensor, caches: tuple[Tensor, Tensor]) -> Tensor:
        """Of `q` [T, num_heads, head_dim], over a layer's K and V by loc; the like of it."""
        attended = self._step.attended
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if attended is None else attended
        if self._num_decode:
            first = slice(self._num_decode)
            self._ops.decode_attention(
                q[first], *caches, self._page_table, *self._decode_rows, self._scale,
                out=out[first], **self._decode_plan,
            )  # fmt: skip
        if self._num_prefill:
            rest = slice(self._num_decode, None)
            self._ops.prefill_attention(
                q[rest], *caches, self._page_table, *self._prefill_rows, self._scale,
                out=out[rest], **self._prefill_plan,
            )  # fmt: skip
        return out
