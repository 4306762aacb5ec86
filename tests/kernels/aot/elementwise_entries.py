"""Writes, norms, rotation and gate, at the shapes of Qwen3-0.6B, Qwen3-14B and Llama-3.1-8B, and at
head dimensions and widths that are no powers of two.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.gpu.decode_inputs import decode_inputs
from kernels.gpu.kv_store import FEW_TOKENS, store_kv
from kernels.gpu.page_table import read_page_table, scatter_page_table
from kernels.gpu.rms_norm import add_rms_norm, rms_norm
from kernels.gpu.rotary_store import rotary_store
from kernels.gpu.silu_mul import silu_mul
from kernels.gpu.step_ring import give_sampled, take_step
from kernels.reference.step_ring import StepRing
from tests.kernels.aot.entry import Entry, Needs

WIDE = Needs(max_registers=128, wide=True)
HEADS = {  # num_heads, num_kv_heads, head_dim
    "Qwen3-0.6B": (16, 8, 128),
    "Qwen3-14B": (40, 8, 128),
    "SmolLM2-135M": (9, 3, 64),
    "80": (32, 32, 80),
    "96": (32, 8, 96),
    "256": (16, 4, 256),
}
WIDTHS = [576, 1024, 5120]
GATES = [1536, 17408]


def entries() -> Iterator[Entry]:
    table, ints = torch.zeros(3, 4096, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    yield Entry("table scatter", lambda: scatter_page_table(table, ints, ints, ints))
    yield Entry("table read", lambda: read_page_table(table, ints, ints))
    yield Entry("decode inputs", lambda: decode_inputs(ints, table, ints, ints))
    ring = StepRing(torch.zeros(3, 82, dtype=torch.int32), table[:, :3], ints[:1])
    yield Entry("take step", lambda: take_step(ring, ints, ints, table, max_writes=24))
    yield Entry("give sampled", lambda: give_sampled(ring, ints, ints.long(), ints > 0, ints))
    for name, shape in HEADS.items():
        yield store_entry(f"store {name}", 2, *shape)
        yield rotary_entry(f"rotary store {name}", *shape, torch.bfloat16, norm=False)
        yield rotary_entry(f"norm rotary store {name}", *shape, torch.bfloat16, norm=True)
    yield store_entry("store of many tokens", FEW_TOKENS + 1, *HEADS["Qwen3-0.6B"])
    yield rotary_entry("float32", *HEADS["Qwen3-0.6B"], torch.float32, norm=True)
    for width in WIDTHS:
        yield norm_entry(width)
    for width in GATES:
        gate_up = torch.zeros(2, 2 * width, dtype=torch.bfloat16)
        yield Entry(
            f"silu {width}", lambda gate_up=gate_up: silu_mul(gate_up), {"silu_mul_kernel": WIDE}
        )


def store_entry(name: str, num_tokens: int, _: int, num_kv_heads: int, head_dim: int) -> Entry:
    def launch() -> None:
        qkv = torch.zeros(num_tokens, 3 * num_kv_heads, head_dim, dtype=torch.bfloat16)
        k, v = qkv[:, num_kv_heads : 2 * num_kv_heads], qkv[:, 2 * num_kv_heads :]
        cache = torch.zeros(2, 16, num_kv_heads, head_dim, dtype=torch.bfloat16)
        store_kv(*cache, k, v, torch.zeros(num_tokens, dtype=torch.int64))

    return Entry(name, launch, {"store_kernel": WIDE})


def rotary_entry(
    name: str, num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, *, norm: bool
) -> Entry:
    def launch() -> None:
        qkv = torch.zeros(2, num_heads + 2 * num_kv_heads, head_dim, dtype=dtype)
        q, k, v = qkv.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
        tables = torch.zeros(2, 64, head_dim)
        cache = torch.zeros(2, 16, num_kv_heads, head_dim, dtype=dtype)
        positions, locs = torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.int64)
        weights: tuple[Tensor, ...] = (torch.zeros(head_dim, dtype=dtype),) * 2 if norm else ()
        rotary_store(q, k, v, *tables, positions, *cache, locs, *weights, eps=1e-6)

    return Entry(name, launch, {"rotary_store_kernel": WIDE})


def norm_entry(width: int) -> Entry:
    def launch() -> None:
        x, weight = torch.zeros(2, width, dtype=torch.bfloat16), torch.zeros(width).bfloat16()
        rms_norm(x, weight, 1e-6)
        add_rms_norm(x, x, weight, 1e-6)

    return Entry(f"norms {width}", launch, {"rms_norm_kernel": WIDE})
