"""Attention as it is shipped, with the tuned configs, at the shapes that goals are set for.

Decode stands beside a plain read of the same K and V, and both beside torch's SDPA, by whichever
backend torch picks. That has no page table: its K and V, [B, Hk, L, D], are gathered out of the
pages before anything is timed, so it reads in one piece what ours finds by locs. Prefill after a
prefix has no SDPA: `is_causal` would begin at the prefix. Plans are made before, as a step makes
one for all its layers. Where a shape names no page size it is 16.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.gpu.attention_cases import SHAPES, Load, World
from bench.gpu.case import DEVICE, DTYPE, ON_GPU, Call, Case
from bench.gpu.timing import READ_PROGRAMS, read

PAGE_SIZE = 16
POOL_BYTES = 4e9 if ON_GPU else 1 << 20
MAX_PREFILL_LAYERS = 4
LLAMA_8B, QWEN_06B, QWEN_14B = SHAPES[:3]
DECODE_OTHERS = ((256, 1024), (8, 640))
DECODE = {  # rows, and the length of each
    LLAMA_8B: ((256, 1024), (64, 1024), (16, 1024), (16, 8192), (1, 1024), (1, 8192)),
    QWEN_06B: DECODE_OTHERS,
    QWEN_14B: DECODE_OTHERS,
}
PREFILL = ((1, 8192, 0), (4, 2048, 0), (8, 2000, 0), (2, 1024, 7168))  # rows, new, cached


def decode_cases() -> Iterator[Case]:
    pool = pool_of_memory()
    for shape, loads in DECODE.items():
        for num_reqs, length in loads if ON_GPU else ((2, 40),):
            load = Load(f"{num_reqs}x{length}", (length,) * num_reqs)
            for page_size in (PAGE_SIZE, 1) if shape == LLAMA_8B else (PAGE_SIZE,):
                yield decode_case(World(shape, load, pool, page_size=page_size))


def prefill_cases() -> Iterator[Case]:
    pool = pool_of_memory()
    for shape in (QWEN_06B, LLAMA_8B):
        for num_reqs, new, cached in PREFILL if ON_GPU else ((2, 20, 0), (2, 8, 16)):
            name = f"{num_reqs}x{new}" + (f" after {cached}" if cached else "")
            load = Load(name, (cached + new,) * num_reqs, (cached,) * num_reqs)
            yield prefill_case(
                World(shape, load, pool, page_size=PAGE_SIZE, max_layers=MAX_PREFILL_LAYERS)
            )


def pool_of_memory() -> Tensor:
    return torch.empty(int(POOL_BYTES / DTYPE.itemsize), dtype=DTYPE, device=DEVICE).normal_()


def decode_case(world: World) -> Case:
    """Of rows of one length."""
    workspace = world.workspace()
    workspace.plan_step(world.table_idxs, world.lens)
    sums = torch.zeros(READ_PROGRAMS, device=DEVICE)
    return Case(
        "decode_attention",
        shape_of(world),
        world.kv_bytes,
        world.decode(workspace),
        sdpa(world),
        reads=[partial(read, layer, sums) for layer in world.layers],
        reads_only=True,
    )


def prefill_case(world: World) -> Case:
    """Of rows of one length, with one prefix length, if any."""
    return Case(
        "prefill_attention",
        shape_of(world),
        0,
        world.prefill(world.plan()),
        [] if any(world.load.cached_lens) else sdpa(world),
        flops=world.flops,
    )


def shape_of(world: World) -> str:
    shape, page_size = world.shape, world.page_size
    heads = f"{shape.num_heads}/{shape.num_kv_heads} x {shape.head_dim}"
    return f"{heads}, {world.load.name}" + (f", page {page_size}" if page_size != PAGE_SIZE else "")


def sdpa(world: World) -> list[Call]:
    """SDPA of the same queries, in prefill causal from the first position."""
    num_reqs, length = len(world.load.lens), world.load.lens[0]
    locs = world.page_table[:, :length].long()
    queries = world.q.view(num_reqs, -1, *world.q.shape[1:]).transpose(1, 2).contiguous()
    gathered = [layer[:, locs].transpose(2, 3).contiguous() for layer in world.layers]
    return [
        partial(
            F.scaled_dot_product_attention,
            queries,
            k,
            v,
            scale=world.scale,
            is_causal=bool(world.load.cached_lens),
            enable_gqa=True,
        )
        for k, v in gathered
    ]
