"""Attention with the shipped configs: every entry of the tuning table, every supported head_dim, by
token and by page.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernels.gpu import attention_tuning
from kernels.gpu.decode_attention import decode_attention
from kernels.gpu.decode_workspace import decode_workspace
from kernels.gpu.prefill_attention import prefill_attention
from tests.kernels.aot.entry import Entry, Needs

NUM_KV_HEADS = 8
GROUPS = {64: (3, 4), 80: (1,), 96: (3,), 128: (1, 2, 4, 5, 7, 8), 256: (2, 4, 8)}  # by head_dim
PAGE_SIZES = (16, 128)
FILLS = Needs(async_copies=True)
FILLS_AND_MULTIPLIES = Needs(async_copies=True, warpgroup_products=True)


def entries() -> Iterator[Entry]:
    batches = sorted({entry.max_reqs for entry in attention_tuning.load()} - {0})
    for head_dim, groups in GROUPS.items():
        for group in groups:
            for page_size in PAGE_SIZES:
                shape = head_dim, group, page_size
                configs = {
                    attention_tuning.decode_config(head_dim, group, num_reqs, torch.bfloat16)
                    for num_reqs in batches
                }
                for config in sorted(configs, key=repr):
                    yield decode_entry(*shape, torch.bfloat16, config)
                yield prefill_entry(*shape, torch.bfloat16)
    for head_dim in (64, 128, 256):
        exact = attention_tuning.decode_config(head_dim, 3, 1, torch.float32)
        yield decode_entry(head_dim, 3, 16, torch.float32, exact, settled=False)
        yield prefill_entry(head_dim, 3, 16, torch.float32)


def decode_entry(
    head_dim: int,
    group: int,
    page_size: int,
    dtype: torch.dtype,
    config: attention_tuning.DecodeConfig,
    *,
    settled: bool = True,
) -> Entry:
    def launch() -> None:
        q, cache, table, ints = tensors(head_dim, group, dtype)
        heads = group * NUM_KV_HEADS, NUM_KV_HEADS
        space = decode_workspace(2, *heads, head_dim, dtype=dtype, device="cpu", config=config)
        space.plan_step(ints, ints)
        decode_attention(
            *(q, cache, cache, table, ints, ints, 0.1),
            workspace=space,
            page_size=page_size,
            settled=settled,
        )

    name = f"decode {head_dim} x{group} page {page_size} {str(dtype)[6:]} of {config.tile_len}"
    kernel = "attend_early_kernel" if settled and config.early_tile else "attend_kernel"
    return Entry(name, launch, {kernel: FILLS})


def prefill_entry(head_dim: int, group: int, page_size: int, dtype: torch.dtype) -> Entry:
    def launch() -> None:
        q, cache, table, ints = tensors(head_dim, group, dtype)
        prefill_attention(q, cache, cache, table, ints, ints, ints, 0.1, page_size=page_size)

    name = f"prefill {head_dim} x{group} page {page_size} {str(dtype)[6:]}"
    needs = Needs() if dtype == torch.float32 else FILLS_AND_MULTIPLIES
    return Entry(name, launch, {"prefill_kernel": needs})


def tensors(head_dim: int, group: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """A query of two tokens inside wider rows, a cache, a page table, and an int for each row."""
    num_heads = group * NUM_KV_HEADS
    return (
        torch.zeros(2, num_heads + 2 * NUM_KV_HEADS, head_dim, dtype=dtype)[:, :num_heads],
        torch.zeros(128, NUM_KV_HEADS, head_dim, dtype=dtype),
        torch.zeros(3, 4096, dtype=torch.int32),
        torch.ones(2, dtype=torch.int32),
    )
