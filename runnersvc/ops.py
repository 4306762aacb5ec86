"""The operations of a device: plain torch on the CPU, Triton on CUDA, with the same signatures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from kernels.reference.logprobs import Logprobs
from servicekit.errors import SetupError


class PlansAttention(Protocol):
    """What an attention needs beside its arguments, the same for every layer of a step."""

    def __call__(self, q: AttentionShape, *rows: Tensor) -> dict[str, Any]:
        """`rows` are the table_idxs and lengths that the attention is given."""


class AttentionShape(NamedTuple):
    """Of the queries of one kind of rows."""

    num_tokens: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


class Ops(NamedTuple):
    """What a forward, the page table and sampling are made of, beside matrix products."""

    scatter_page_table: Callable[..., None]
    read_page_table: Callable[..., Tensor]
    decode_inputs: Callable[..., tuple[Tensor, Tensor, Tensor]]
    take_step: Callable[..., None]
    give_sampled: Callable[..., None]
    rms_norm: Callable[..., Tensor]
    rotary_store: Callable[..., None]
    decode_attention: Callable[..., Tensor]
    prefill_attention: Callable[..., Tensor]
    silu_mul: Callable[..., Tensor]
    skinny_linear: Callable[..., Tensor]
    suits_skinny_linear: Callable[..., bool]  # whether it is the fastest that there is
    sample: Callable[..., Tensor]
    logprobs: Callable[..., Logprobs]
    adjust_logits: Callable[..., None]
    mark_prompt: Callable[..., None]
    count_output: Callable[..., None]
    plan_decode: PlansAttention  # once a step, for all layers
    plan_prefill: PlansAttention


def check_kernels(head_dim: int, group: int, dtype: torch.dtype) -> None:
    """Whether the GPU kernels are made for a model: `group` query heads a KV head.

    Errors: SetupError for a head_dim or a dtype without a kernel, or a tuning table that is broken.
    """
    from kernels.gpu import linear_tuning
    from kernels.gpu.attention_tuning import decode_config, prefill_config

    try:
        linear_tuning.load()
        decode_config(head_dim, group, 1, dtype)
        prefill_config(head_dim, group, dtype)
    except ValueError as error:
        raise SetupError(str(error)) from error


def ops_of(device: torch.device, page_size: int) -> Ops:
    """For tensors on `device`, with a page table whose locs run on inside a page."""
    return _triton_ops(page_size) if device.type == "cuda" else _torch_ops()


def _torch_ops() -> Ops:
    from kernels.reference.attention import decode_attention, prefill_attention
    from kernels.reference.decode_inputs import decode_inputs
    from kernels.reference.logit_rules import adjust_logits
    from kernels.reference.logprobs import logprobs
    from kernels.reference.page_table import read_page_table, scatter_page_table
    from kernels.reference.rms_norm import rms_norm
    from kernels.reference.rotary_store import rotary_store
    from kernels.reference.sampling import sample
    from kernels.reference.silu_mul import silu_mul
    from kernels.reference.skinny_linear import skinny_linear
    from kernels.reference.step_ring import give_sampled, take_step
    from kernels.reference.token_history import count_output, mark_prompt

    return Ops(
        scatter_page_table,
        read_page_table,
        decode_inputs,
        take_step,
        give_sampled,
        rms_norm,
        rotary_store,
        decode_attention,
        prefill_attention,
        silu_mul,
        skinny_linear,
        lambda *_, **__: False,
        sample,
        logprobs,
        adjust_logits,
        mark_prompt,
        count_output,
        plan_decode=lambda _, *rows: {},
        plan_prefill=lambda _, *rows: {},
    )


def _triton_ops(page_size: int) -> Ops:
    from kernels.gpu.decode_attention import decode_attention
    from kernels.gpu.decode_inputs import decode_inputs
    from kernels.gpu.linear_tuning import suits
    from kernels.gpu.logit_rules import adjust_logits
    from kernels.gpu.logprobs import logprobs
    from kernels.gpu.page_table import read_page_table, scatter_page_table
    from kernels.gpu.prefill_attention import prefill_attention
    from kernels.gpu.rms_norm import rms_norm
    from kernels.gpu.rotary_store import rotary_store
    from kernels.gpu.sampling import sample
    from kernels.gpu.silu_mul import silu_mul
    from kernels.gpu.skinny_linear import skinny_linear
    from kernels.gpu.step_ring import give_sampled, take_step
    from kernels.gpu.token_history import count_output, mark_prompt

    return Ops(
        scatter_page_table,
        read_page_table,
        decode_inputs,
        take_step,
        give_sampled,
        rms_norm,
        rotary_store,
        partial(decode_attention, page_size=page_size),
        partial(prefill_attention, page_size=page_size),
        silu_mul,
        skinny_linear,
        suits,
        sample,
        logprobs,
        adjust_logits,
        mark_prompt,
        count_output,
        _plan_decode,
        _plan_prefill,
    )


def _plan_decode(q: AttentionShape, *rows: Tensor) -> dict[str, Any]:
    from kernels.gpu.decode_workspace import decode_workspace

    workspace = decode_workspace(
        q.num_tokens, q.num_heads, q.num_kv_heads, q.head_dim, dtype=q.dtype, device=q.device
    )
    workspace.plan_step(*rows)
    return {"workspace": workspace, "settled": True}  # the embedding comes after


def _plan_prefill(q: AttentionShape, *rows: Tensor) -> dict[str, Any]:
    from kernels.gpu.attention_tuning import prefill_config
    from kernels.gpu.prefill_plan import plan_prefill

    group = q.num_heads // q.num_kv_heads
    config = prefill_config(q.head_dim, group, q.dtype)
    plan = plan_prefill(*rows, num_tokens=q.num_tokens, group=group, config=config)
    return {"plan": plan}
