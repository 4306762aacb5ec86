"""The transformer: one forward of all tokens of a step, decode and prefill rows alike."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.reference.rotary import rotary_tables
from runnersvc.families import ModelSpec
from runnersvc.kv_cache import KVCache
from runnersvc.linear import Linear
from runnersvc.ops import Ops
from runnersvc.rope import inverse_frequencies
from runnersvc.weights import Checkpoint, LayerWeights


@dataclass(frozen=True, slots=True)
class Step:
    """What one forward computes: T tokens, the rows' tokens one after the other. All on the device.

    Rows with one new token decode, the others prefill. `*_tokens` say where a kind's tokens are
    among the T, in the order of its rows; None says that all tokens are of this kind.
    """

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    out_locs: Tensor  # [T] int64
    decode_rows: Tensor  # [B] table_idxs
    decode_seq_lens: Tensor  # [B] with the new token
    decode_tokens: Tensor | None  # [B]
    prefill_rows: Tensor  # [P] table_idxs
    prefill_cached_lens: Tensor  # [P]
    prefill_extend_lens: Tensor  # [P]
    prefill_tokens: Tensor | None  # [sum of prefill_extend_lens]
    sampling_tokens: Tensor  # [S] the last tokens of the rows that sample


class Transformer:
    """The parameters of one model and its forward. Nothing here changes after start."""

    def __init__(self, spec: ModelSpec, checkpoint: Checkpoint, max_seq_len: int, ops: Ops) -> None:
        self._spec, self._ops = spec, ops
        outside = checkpoint.model()
        self._embedding, self._final_norm = outside.embedding, outside.final_norm
        self._head = Linear(outside.head)
        self._layers = [_Layer(spec, weights, ops) for weights in checkpoint.layers()]
        frequencies = inverse_frequencies(spec.rope, spec.head_dim)
        self._rotary = rotary_tables(frequencies.to(outside.embedding.device), max_seq_len)

    def forward(self, step: Step, kv_cache: KVCache) -> Tensor:
        """Logits [S, vocab] of the sampling tokens. Stores K and V of all at their out_locs."""
        hidden = F.embedding(step.token_ids, self._embedding)  # [T, hidden]
        for layer_idx, layer in enumerate(self._layers):
            caches = kv_cache.layer(layer_idx)
            hidden = layer.forward(hidden, step, self._rotary, caches, kv_cache.page_table)
        hidden = hidden.index_select(0, step.sampling_tokens)
        return self._head(self._ops.rms_norm(hidden, self._final_norm, self._spec.rms_eps))


class _Layer:
    def __init__(self, spec: ModelSpec, weights: LayerWeights, ops: Ops) -> None:
        self._ops = ops
        self._eps = spec.rms_eps
        self._num_heads, self._num_kv_heads = spec.num_heads, spec.num_kv_heads
        self._head_dim = spec.head_dim
        self._scale = 1 / math.sqrt(spec.head_dim)
        self._attention_norm, self._mlp_norm = weights.attention_norm, weights.mlp_norm
        self._qkv, self._o = Linear(weights.qkv), Linear(weights.o)
        self._gate_up, self._down = Linear(weights.gate_up), Linear(weights.down)

    def forward(
        self,
        hidden: Tensor,
        step: Step,
        rotary_tables: tuple[Tensor, Tensor],
        caches: tuple[Tensor, Tensor],
        page_table: Tensor,
    ) -> Tensor:
        """One layer on `hidden` [T, hidden_dim]."""
        ops, heads = self._ops, [self._num_heads, self._num_kv_heads, self._num_kv_heads]
        qkv = self._qkv(ops.rms_norm(hidden, self._attention_norm, self._eps))
        q, k, v = torch.split(qkv.view(-1, sum(heads), self._head_dim), heads, dim=1)
        ops.rotary_store(q, k, v, *rotary_tables, step.positions, *caches, step.out_locs)
        attended = self._attend(q, step, caches, page_table)
        hidden = self._o(attended.view(len(hidden), -1), add=hidden)
        gate_up = self._gate_up(ops.rms_norm(hidden, self._mlp_norm, self._eps))
        return self._down(ops.silu_mul(gate_up), add=hidden)

    def _attend(
        self, q: Tensor, step: Step, caches: tuple[Tensor, Tensor], page_table: Tensor
    ) -> Tensor:
        """Attention of `q` [T, num_heads, head_dim]: one call for each of the two kinds of rows."""

        def decode(q: Tensor) -> Tensor:
            lens = step.decode_seq_lens
            rows = step.decode_rows
            return self._ops.decode_attention(q, *caches, page_table, rows, lens, self._scale)

        def prefill(q: Tensor) -> Tensor:
            lens = step.prefill_cached_lens, step.prefill_extend_lens
            rows = step.prefill_rows
            return self._ops.prefill_attention(q, *caches, page_table, rows, *lens, self._scale)

        if step.decode_tokens is None:
            return decode(q)
        if step.prefill_tokens is None:
            return prefill(q)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        out[step.decode_tokens] = decode(q[step.decode_tokens])
        out[step.prefill_tokens] = prefill(q[step.prefill_tokens])
        return out
