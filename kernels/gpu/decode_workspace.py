"""The memory of one decode step: its plan, and room for partial results."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.gpu.attention_tuning import DecodeConfig, decode_config
from kernels.gpu.decode_plan import DecodePlan, empty_plan, plan_decode

_INTERPRETED_WORKERS = 4


@dataclass(frozen=True)
class DecodeWorkspace:
    """What one decode step writes beside its output. A CUDA graph keeps one for its batch.

    `partial` [2 * W, H, D] and `partial_lse` [2 * W, H] (in powers of two) are float32; nothing in
    them outlives a call. `arrivals` int32 [B, Hk] is zero between calls.
    """

    config: DecodeConfig
    plan: DecodePlan
    partial: Tensor
    partial_lse: Tensor
    arrivals: Tensor

    def plan_step(self, table_idxs: Tensor, seq_lens: Tensor) -> None:
        """Partitions rows of `seq_lens` [B] >= 1 on the device; once a step, before its layers."""
        plan_decode(self.plan, table_idxs, seq_lens, tile_len=self.config.tile_len)


def decode_workspace(
    num_reqs: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    config: DecodeConfig | None = None,
    num_workers: int | None = None,
) -> DecodeWorkspace:
    """A workspace for `num_reqs` rows; the tuned config and worker count unless given.

    Errors: ValueError on a head_dim or dtype that has no kernel, or a table that cannot be used.
    """
    assert num_heads % num_kv_heads == 0, f"{num_heads = } is no multiple of {num_kv_heads = }"
    if config is None:
        config = decode_config(head_dim, num_heads // num_kv_heads, num_reqs, dtype)
    if num_workers is None:
        num_workers = _num_workers(config, num_kv_heads, torch.device(device))
    partials = 2 * num_workers, num_heads
    return DecodeWorkspace(
        config,
        empty_plan(num_reqs, num_workers, device),
        torch.empty(*partials, head_dim, dtype=torch.float32, device=device),
        torch.empty(partials, dtype=torch.float32, device=device),
        torch.zeros(num_reqs, num_kv_heads, dtype=torch.int32, device=device),
    )


def _num_workers(config: DecodeConfig, num_kv_heads: int, device: torch.device) -> int:
    """Workers of every KV head, so that all heads' together fill the card."""
    if device.type != "cuda":
        return _INTERPRETED_WORKERS
    programs = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, programs * config.workers_per_sm // num_kv_heads)
