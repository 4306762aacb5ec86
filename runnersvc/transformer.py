"""The transformer: one forward of all tokens of a step, decode and prefill rows alike."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.reference.rotary import rotary_tables
from runnersvc.attention import StepAttention
from runnersvc.families import ModelSpec
from runnersvc.kv_cache import KVCache
from runnersvc.linear import Linear
from runnersvc.ops import Ops
from runnersvc.rope import inverse_frequencies
from runnersvc.step import Step
from runnersvc.weights import LayerWeights, Weights


class Transformer:
    """The parameters of one model and its forward. Nothing here changes after start."""

    def __init__(self, spec: ModelSpec, weights: Weights, max_seq_len: int, ops: Ops) -> None:
        self._spec, self._ops = spec, ops
        outside = weights.model()
        self._embedding = outside.embedding
        self._head = Linear(outside.head, ops, norm=outside.final_norm, eps=spec.rms_eps)
        self._layers = [_Layer(spec, layer, ops) for layer in weights.layers()]
        frequencies = inverse_frequencies(spec.rope, spec.head_dim)
        self._rotary = rotary_tables(frequencies.to(outside.embedding.device), max_seq_len)

    def forward(self, step: Step, kv_cache: KVCache) -> Tensor:
        """The hidden state [T, hidden] after all layers, which store K and V at the out_locs."""
        spec, page_table = self._spec, kv_cache.page_table
        attention = StepAttention(self._ops, spec, step, page_table, self._embedding.dtype)
        # An ordinary launch: what was planned and stored before it, attention may read early.
        hidden = F.embedding(step.token_ids, self._embedding)  # [T, hidden]
        for layer_idx, layer in enumerate(self._layers):
            caches = kv_cache.layer(layer_idx)
            hidden = layer.forward(hidden, step, self._rotary, caches, attention)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[S, vocab] of a hidden state [S, hidden]."""
        return self._head(hidden)


class _Layer:
    def __init__(self, spec: ModelSpec, weights: LayerWeights, ops: Ops) -> None:
        self._ops = ops
        self._num_heads, self._num_kv_heads = spec.num_heads, spec.num_kv_heads
        self._head_dim = spec.head_dim
        self._head_norms = weights.q_norm, weights.k_norm, spec.rms_eps
        self._qkv = Linear(weights.qkv, ops, norm=weights.attention_norm, eps=spec.rms_eps)
        self._o = Linear(weights.o, ops)
        self._gate_up = Linear(
            weights.gate_up, ops, norm=weights.mlp_norm, eps=spec.rms_eps, gated=True
        )
        self._down = Linear(weights.down, ops)

    def forward(
        self,
        hidden: Tensor,
        step: Step,
        rotary_tables: tuple[Tensor, Tensor],
        caches: tuple[Tensor, Tensor],
        attention: StepAttention,
    ) -> Tensor:
        """One layer on `hidden` [T, hidden_dim], which it may overwrite."""
        heads = [self._num_heads, self._num_kv_heads, self._num_kv_heads]
        qkv = self._qkv(hidden)
        q, k, v = torch.split(qkv.view(-1, sum(heads), self._head_dim), heads, dim=1)
        self._ops.rotary_store(
            q, k, v, *rotary_tables, step.positions, *caches, step.out_locs, *self._head_norms
        )
        attended = attention(q, caches)
        hidden = self._o(attended.view(len(hidden), -1), add=hidden)
        return self._down(self._gate_up(hidden), add=hidden)
