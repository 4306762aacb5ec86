"""The operations of a device: plain torch on the CPU, Triton on CUDA, with the same signatures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor


class Ops(NamedTuple):
    """What a forward, the page table and sampling are made of, beside matrix products."""

    scatter_page_table: Callable[..., None]
    read_page_table: Callable[..., Tensor]
    rms_norm: Callable[..., Tensor]
    rotary_store: Callable[..., None]
    decode_attention: Callable[..., Tensor]
    prefill_attention: Callable[..., Tensor]
    silu_mul: Callable[..., Tensor]
    sample: Callable[..., Tensor]


def ops_of(device: torch.device, page_size: int) -> Ops:
    """For tensors on `device`, with a page table whose locs run on inside a page."""
    return _triton_ops(page_size) if device.type == "cuda" else _torch_ops()


def _torch_ops() -> Ops:
    from kernels.reference.attention import decode_attention, prefill_attention
    from kernels.reference.page_table import read_page_table, scatter_page_table
    from kernels.reference.rms_norm import rms_norm
    from kernels.reference.rotary_store import rotary_store
    from kernels.reference.sampling import sample
    from kernels.reference.silu_mul import silu_mul

    return Ops(
        scatter_page_table,
        read_page_table,
        rms_norm,
        rotary_store,
        decode_attention,
        prefill_attention,
        silu_mul,
        sample,
    )


def _triton_ops(page_size: int) -> Ops:
    from kernels.gpu.decode_attention import decode_attention
    from kernels.gpu.page_table import read_page_table, scatter_page_table
    from kernels.gpu.prefill_attention import prefill_attention
    from kernels.gpu.rms_norm import rms_norm
    from kernels.gpu.rotary_store import rotary_store
    from kernels.gpu.sampling import sample
    from kernels.gpu.silu_mul import silu_mul

    return Ops(
        scatter_page_table,
        read_page_table,
        rms_norm,
        rotary_store,
        partial(decode_attention, page_size=page_size),
        partial(prefill_attention, page_size=page_size),
        silu_mul,
        sample,
    )
