"""What attention is measured with: shapes, loads and configs, and the memory behind a load."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from bench.gpu.case import DTYPE, Call
from kernels.gpu.attention_tuning import DecodeConfig, PrefillConfig, prefill_config
from kernels.gpu.decode_attention import decode_attention
from kernels.gpu.decode_workspace import DecodeWorkspace, decode_workspace
from kernels.gpu.prefill_attention import prefill_attention
from kernels.gpu.prefill_plan import PrefillPlan, plan_prefill

COLD_BYTES = 512e6  # of K and V that a round reads: eight times what the card caches
SHARED_BYTES = 232_448  # shared memory that one program may have
CHECKED_TOKENS = 64


@dataclass(frozen=True)
class Shape:
    head_dim: int
    num_heads: int
    num_kv_heads: int

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True)
class Load:
    """The rows of one step; decode where `cached_lens` is empty, else prefill after them."""

    name: str
    lens: tuple[int, ...]
    cached_lens: tuple[int, ...] = ()
    shared_len: int = 0  # positions whose pages are those of row 0, as after a prefix hit


SHAPES = (  # the first is swept in full, those after it with what is left of time
    Shape(128, 32, 8),  # Llama-3.1-8B
    Shape(128, 16, 8),  # Qwen3-0.6B
    Shape(128, 40, 8),  # Qwen3-14B
    Shape(64, 9, 3),  # SmolLM2-135M
    Shape(64, 32, 8),  # Llama-3.2-1B
    Shape(256, 16, 8),
    Shape(128, 32, 32),
)
MAX_EARLY_ROWS = 16
EARLY_TILES = ((32, 4, 2), (64, 4, 2), (64, 8, 2), (128, 8, 2))  # tile_len, warps, stages
MIXED = random.Random(0)
DECODE_LOADS = (
    Load("256x1024", (1024,) * 256),
    Load("1x1024", (1024,)),
    Load("64x1024", (1024,) * 64),
    Load("8x768", (768,) * 8),
    Load("256xmixed", tuple(MIXED.randint(100, 2048) for _ in range(256))),
    Load("32x768", (768,) * 32),
    Load("1x8192", (8192,)),
    Load("128x768", (768,) * 128),
    Load("16x1024", (1024,) * 16),
    Load("16x8192", (8192,) * 16),
    Load("64xmixed", tuple(MIXED.randint(100, 2048) for _ in range(64))),
    Load("256x2176 of which 2048 shared", (2176,) * 256, shared_len=2048),
)
FEW_DECODE_LOADS = DECODE_LOADS[:7]
FEW_ROWS_LOADS = tuple(load for load in DECODE_LOADS if len(load.lens) <= MAX_EARLY_ROWS)
BATCHES = {1: 2, 8: 11, 16: 23, 32: 47, 64: 95, 128: 191, 256: 1024}  # rows: max_reqs of its entry
PREFILL_LOADS = (
    Load("1x8192", (8192,), (0,)),
    Load("4x2048", (2048,) * 4, (0,) * 4),
    Load("32x512", (512,) * 32, (0,) * 32),
    Load("2x1024 after 7168", (8192,) * 2, (7168,) * 2),
)
WORKERS_PER_SM = (1, 2, 3, 4, 6, 8)


def decode_configs(shape: Shape, *, few: bool) -> list[DecodeConfig]:
    """Tiles, warps and stages that fit and spill few registers; the sweep sets workers_per_sm.

    Those that read a tile early are for at most MAX_EARLY_ROWS rows.
    """
    tiles = [(64, 4, 3), (128, 4, 3), (64, 4, 2), (32, 4, 4), (128, 8, 3)]
    more = [] if few else [(32, 4, 3), (64, 4, 4), (64, 8, 3), (128, 4, 2), (128, 8, 2)]
    configs = [DecodeConfig(*tile, workers_per_sm=1) for tile in tiles]
    configs += [replace(config, fused_combine=True) for config in configs]
    configs += [DecodeConfig(*tile, workers_per_sm=1) for tile in more]
    configs += [
        DecodeConfig(*tile, workers_per_sm=1, early_tile=True)  # the others spill
        for tile in EARLY_TILES
        if tile[0] > 32 or shape.head_dim < 256
    ]
    return [
        config
        for config in configs
        if 4 * config.tile_len * _padded(shape) * (config.num_stages - 1) < SHARED_BYTES
        and (config.num_warps == 4 or shape.head_dim >= 128)
    ]


def prefill_configs(shape: Shape) -> list[PrefillConfig]:
    """Tiles, warps and stages that fit and spill no register."""
    tiles = [(128, 64, 8, 3), (64, 64, 4, 2), (128, 64, 8, 2), (64, 64, 4, 3), (128, 32, 8, 3)]
    tiles += [(128, 128, 8, 2), (64, 32, 4, 3), (128, 32, 8, 2)]
    padded = _padded(shape)
    return [
        PrefillConfig(rows, length, warps, stages)
        for rows, length, warps, stages in tiles
        if 2 * padded * (rows + 2 * length * stages) < SHARED_BYTES
        and (padded + length <= 192 or (length == 32 and warps == 8))
    ]


def _padded(shape: Shape) -> int:
    return 1 << (shape.head_dim - 1).bit_length()


class World:
    """Layers of K and V cut from one pool, and rows whose pages lie in them in random order."""

    def __init__(
        self, shape: Shape, load: Load, pool: Tensor, *, page_size: int, max_layers: int = 32
    ) -> None:
        self.shape, self.load, self.page_size = shape, load, page_size
        device = pool.device
        pages_of = [-(-length // page_size) for length in load.lens]
        num_pages, width = sum(pages_of), max(pages_of) * page_size
        layer_shape = num_pages * page_size, shape.num_kv_heads, shape.head_dim
        elements = layer_shape[0] * layer_shape[1] * layer_shape[2]
        wanted = int(COLD_BYTES / (4 * elements)) + 2
        self.num_layers = max(1, min(wanted, max_layers, len(pool) // (2 * elements)))
        cut = pool[: 2 * self.num_layers * elements]
        self.layers = cut.view(self.num_layers, 2, *layer_shape)  # K and V of each
        order = torch.randperm(num_pages, device=device).int()
        first_locs = torch.zeros(len(load.lens), width // page_size, device=device).int()
        begin = 0
        for row, pages in enumerate(pages_of):
            first_locs[row, :pages] = order[begin : begin + pages] * page_size
            begin += pages
        first_locs[:, : load.shared_len // page_size] = first_locs[
            0, : load.shared_len // page_size
        ]
        offsets = torch.arange(page_size, dtype=torch.int32, device=device)
        table = (first_locs[:, :, None] + offsets).view(len(load.lens), width)
        self.page_table = torch.nn.functional.pad(table, (0, -width % 32))
        self.table_idxs = torch.arange(len(load.lens), dtype=torch.int32, device=device)
        self.lens = torch.tensor(load.lens, dtype=torch.int32, device=device)
        cached_lens = load.cached_lens or tuple(length - 1 for length in load.lens)
        self.cached_lens = torch.tensor(cached_lens, dtype=torch.int32, device=device)
        self.extend_lens = self.lens - self.cached_lens
        num_tokens = sum(load.lens) - sum(cached_lens)
        self.q = torch.randn(num_tokens, shape.num_heads, shape.head_dim, device=device).to(DTYPE)
        self.out = torch.empty_like(self.q)
        self.scale = shape.head_dim**-0.5

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V that one layer of decode reads."""
        token = 2 * self.shape.num_kv_heads * self.shape.head_dim * DTYPE.itemsize
        return sum(self.load.lens) * token

    @property
    def flops(self) -> float:
        """Multiplications and additions of one layer of causal prefill."""
        seen = sum(
            (cached + 1 + length) * (length - cached) / 2
            for length, cached in zip(self.load.lens, self.load.cached_lens, strict=True)
        )
        return 4.0 * self.shape.num_heads * self.shape.head_dim * seen

    def workspace(self, config: DecodeConfig | None = None) -> DecodeWorkspace:
        """Of the tuned config unless one is given."""
        shape = self.shape
        return decode_workspace(
            len(self.load.lens),
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            dtype=DTYPE,
            device=self.q.device,
            config=config,
        )

    def decode(self, workspace: DecodeWorkspace) -> list[Call]:
        """One step, a call for each layer."""
        rows = self.page_table, self.table_idxs, self.lens
        return [
            partial(
                decode_attention,
                self.q,
                k,
                v,
                *rows,
                self.scale,
                out=self.out,
                workspace=workspace,
                page_size=self.page_size,
                settled=True,
            )
            for k, v in self.layers
        ]

    def plan(self, config: PrefillConfig | None = None) -> PrefillPlan:
        """Of the tuned config unless one is given."""
        return plan_prefill(
            self.table_idxs,
            self.cached_lens,
            self.extend_lens,
            num_tokens=len(self.q),
            group=self.shape.group,
            config=config or prefill_config(self.shape.head_dim, self.shape.group, DTYPE),
        )

    def prefill(self, plan: PrefillPlan) -> list[Call]:
        """One step, a call for each layer."""
        rows = self.table_idxs, self.cached_lens, self.extend_lens
        return [
            partial(
                prefill_attention,
                self.q,
                k,
                v,
                self.page_table,
                *rows,
                self.scale,
                out=self.out,
                plan=plan,
                page_size=self.page_size,
            )
            for k, v in self.layers
        ]

    def error(self) -> float:
        """How far the last layer's output is from float64, in the last tokens of a few rows."""
        errors = []
        extend_lens = [
            length - cached
            for length, cached in zip(self.load.lens, self.load.cached_lens, strict=False)
        ] or [1] * len(self.load.lens)
        ends = torch.tensor(extend_lens).cumsum(0).tolist()
        for row in sorted({0, len(ends) // 2, len(ends) - 1}):
            length, tokens = self.load.lens[row], min(CHECKED_TOKENS, extend_lens[row])
            locs = self.page_table[row, :length].long()
            k, v = (
                cache[locs].double().repeat_interleave(self.shape.group, dim=1)
                for cache in self.layers[-1]
            )
            last = slice(ends[row] - tokens, ends[row])
            scores = torch.einsum("qhd,khd->hqk", self.q[last].double(), k) * self.scale
            later = torch.ones(tokens, length, device=k.device).triu(length - tokens + 1).bool()
            weights = scores.masked_fill(later, float("-inf")).softmax(-1)
            expected = torch.einsum("hqk,khd->qhd", weights, v)
            errors.append(float((self.out[last].double() - expected).norm() / expected.norm()))
        return max(errors, key=lambda error: error if error == error else float("inf"))
