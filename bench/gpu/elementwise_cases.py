"""Writes, rotation, norms and gate at the shapes of Qwen3-0.6B and 14B, beside plain torch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from bench.gpu.case import DEVICE, ON_GPU, Case, random, rotations
from kernels.gpu.kv_store import store_kv
from kernels.gpu.page_table import scatter_page_table
from kernels.gpu.rms_norm import add_rms_norm
from kernels.gpu.rotary_store import rotary_store
from kernels.gpu.silu_mul import silu_mul
from kernels.reference.kv_store import store_kv as plain_store
from kernels.reference.page_table import scatter_page_table as plain_scatter
from kernels.reference.rms_norm import add_rms_norm as plain_add_rms_norm
from kernels.reference.rotary import rotary_tables
from kernels.reference.rotary_store import rotary_store as plain_rotary_store

TOKENS = (1, 64, 256, 1024, 8192, 16384) if ON_GPU else (1, 2)
ENTRIES = (16, 256, 8192, 65536) if ON_GPU else (16,)
NUM_LOCS = 131_072 if ON_GPU else 64
NUM_KV_HEADS, HEAD_DIM = 8, 128


def elementwise_cases() -> Iterator[Case]:
    for n in ENTRIES:
        yield scatter_case(n)
    for num_tokens in TOKENS:
        yield store_case(num_tokens)
        for model, num_heads in (("0.6B", 16), ("14B", 40)):
            yield rotary_case(model, num_heads, num_tokens)
        for width in (1024, 5120):
            yield norm_case(num_tokens, width)
        for width in (3072, 17408):
            yield gate_case(num_tokens, width)


def scatter_case(n: int) -> Case:
    table = torch.zeros(257, 32768 if ON_GPU else 64, dtype=torch.int32, device=DEVICE)
    sets = []
    for _ in range(rotations(32 * n)):
        flat = torch.randperm(table.numel(), device=DEVICE)[:n]
        locs = torch.randint(0, 2**31 - 1, (n,), dtype=torch.int32, device=DEVICE)
        sets.append(((flat // table.shape[1]).int(), (flat % table.shape[1]).int(), locs))
    return Case(
        "page_table_scatter", f"{n}", 16 * n,
        [lambda s=s: scatter_page_table(table, *s) for s in sets],
        [lambda s=s: plain_scatter(table, *s) for s in sets],
    )  # fmt: skip


def store_case(num_tokens: int) -> Case:
    num_bytes = 8 * num_tokens * NUM_KV_HEADS * HEAD_DIM
    cache = random(2, NUM_LOCS, NUM_KV_HEADS, HEAD_DIM)
    sets = []
    for _ in range(rotations(num_bytes)):
        qkv = random(num_tokens, 32, HEAD_DIM)
        locs = torch.randperm(NUM_LOCS, device=DEVICE)[:num_tokens]
        sets.append((qkv[:, 16:24], qkv[:, 24:], locs))
    pairs = [random(2, num_bytes // 4) for _ in sets]
    return Case(
        "kv_store", f"{num_tokens} x {NUM_KV_HEADS} x {HEAD_DIM}", num_bytes,
        [lambda s=s: store_kv(*cache, *s) for s in sets],
        [lambda s=s: plain_store(*cache, *s) for s in sets],
        [lambda p=p: p[0].copy_(p[1]) for p in pairs],
    )  # fmt: skip


def rotary_case(model: str, num_heads: int, num_tokens: int) -> Case:
    elements = num_tokens * HEAD_DIM
    num_bytes = elements * (2 * (2 * num_heads + 4 * NUM_KV_HEADS) + 4)
    cache = random(2, NUM_LOCS, NUM_KV_HEADS, HEAD_DIM)
    frequencies = 1e6 ** (-torch.arange(HEAD_DIM // 2, device=DEVICE) * 2 / HEAD_DIM)
    tables = rotary_tables(frequencies, 40_960 if ON_GPU else 64)
    norms = random(2, HEAD_DIM)
    sets = []
    for _ in range(rotations(num_bytes)):
        qkv = random(num_tokens, num_heads + 2 * NUM_KV_HEADS, HEAD_DIM)
        positions = torch.randint(len(tables[0]), (num_tokens,), device=DEVICE).int()
        locs = torch.randperm(NUM_LOCS, device=DEVICE)[:num_tokens]
        parts = qkv.split((num_heads, NUM_KV_HEADS, NUM_KV_HEADS), dim=1)
        sets.append((*parts, *tables, positions, *cache, locs, *norms, 1e-6))
    return Case(
        "qk_norm_rotary_store", f"{model} {num_tokens} x {num_heads}/{NUM_KV_HEADS} x {HEAD_DIM}",
        num_bytes,
        [lambda s=s: rotary_store(*s) for s in sets],
        [lambda s=s: plain_rotary_store(*s) for s in sets],
    )  # fmt: skip


def norm_case(num_tokens: int, width: int) -> Case:
    num_bytes = 8 * num_tokens * width
    weight = random(width)
    sets = [random(2, num_tokens, width) for _ in range(rotations(num_bytes))]
    return Case(
        "add_rms_norm", f"{num_tokens} x {width}", num_bytes,
        [lambda s=s: add_rms_norm(s[0], s[1], weight, 1e-6) for s in sets],
        [lambda s=s: plain_add_rms_norm(s[0], s[1], weight, 1e-6) for s in sets],
    )  # fmt: skip


def gate_case(num_tokens: int, width: int) -> Case:
    num_bytes = 6 * num_tokens * width
    sets = [random(num_tokens, 2 * width) for _ in range(rotations(num_bytes))]
    return Case(
        "silu_mul", f"{num_tokens} x {width}", num_bytes,
        [lambda s=s: silu_mul(s) for s in sets],
        [lambda s=s: F.silu(s[:, :width]) * s[:, width:] for s in sets],
    )  # fmt: skip
