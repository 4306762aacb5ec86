"""Norm, rotation and store of Q, K and V in one launch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels.gpu.rotary_store import rotary_store
from kernels.reference.rotary import rotary_tables
from kernels.reference.rotary_store import rotary_store as reference
from tests.kernels.gpu.closeness import BOUNDS, assert_near

NUM_TOKENS, NUM_LOCS, MAX_SEQ_LEN, EPS = 5, 48, 200, 1e-6
SHAPES = [  # num_heads, num_kv_heads, head_dim
    (16, 8, 128),
    (40, 8, 128),
    (9, 3, 64),
    (4, 4, 80),
    (5, 1, 96),
    (2, 2, 256),
    (7, 1, 112),
]


@dataclass(frozen=True)
class Projected:
    """A step's projection, `qkv` [T, num_heads + 2 * num_kv_heads, head_dim], and a NaN pool."""

    qkv: Tensor
    num_kv_heads: int
    norms: tuple[Tensor, Tensor] | None
    tables: tuple[Tensor, Tensor]
    positions: Tensor
    out_locs: Tensor

    def run(self, op: Callable[..., None], device: torch.device) -> tuple[Tensor, Tensor]:
        """Q, K and V after `op`, and the caches [2, NUM_LOCS, num_kv_heads, head_dim]."""
        qkv = self.qkv.clone().to(device)
        kv = self.num_kv_heads
        cache = torch.full((2, NUM_LOCS, kv, qkv.shape[2]), math.nan, dtype=qkv.dtype)
        cache = cache.to(device)
        norms = self.norms and [norm.to(device) for norm in self.norms]
        op(
            qkv[:, : -2 * kv], qkv[:, -2 * kv : -kv], qkv[:, -kv:],
            *(table.to(device) for table in self.tables), self.positions.to(device),
            *cache, self.out_locs.to(device), *(norms or ()), eps=EPS,
        )  # fmt: skip
        return qkv.cpu(), cache.cpu()


def projected(
    num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, *, norm: bool
) -> Projected:
    weights = (1 + torch.randn(2, head_dim) / 4).to(dtype)
    return Projected(
        qkv=(torch.randn(NUM_TOKENS, num_heads + 2 * num_kv_heads, head_dim) * 3).to(dtype),
        num_kv_heads=num_kv_heads,
        norms=(weights[0], weights[1]) if norm else None,
        tables=rotary_tables(
            10_000.0 ** (-torch.arange(head_dim // 2) * 2 / head_dim), MAX_SEQ_LEN
        ),
        positions=torch.tensor([0, 199, 16, 3, 3], dtype=torch.int32),
        out_locs=torch.randperm(NUM_LOCS)[:NUM_TOKENS],
    )


def in_float64(step: Projected) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated Q, rotated K and V, by the formulas, as complex numbers."""
    wide = step.qkv.double()
    half = wide.shape[2] // 2
    kv = step.num_kv_heads
    turned = []
    for n, heads in enumerate((wide[:, : -2 * kv], wide[:, -2 * kv : -kv])):
        if step.norms:
            scale = (heads.square().mean(-1, keepdim=True) + EPS).rsqrt()
            heads = heads * scale * step.norms[n].double()
        of_token = [table[step.positions.long()].double()[:, None] for table in step.tables]
        turn = torch.complex(of_token[0][..., :half], of_token[1][..., half:])
        pairs = torch.complex(heads[..., :half], heads[..., half:]) * turn
        turned.append(torch.cat((pairs.real, pairs.imag), dim=-1))
    return turned[0], turned[1], wide[:, -kv:]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), SHAPES)
def test_q_turns_in_place_and_k_and_v_go_to_their_locs_alone(
    num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, norm: bool,
    device: torch.device,
) -> None:  # fmt: skip
    step = projected(num_heads, num_kv_heads, head_dim, dtype, norm=norm)

    qkv, cache = step.run(rotary_store, device)

    q, k, v = in_float64(step)
    assert_near(qkv[:, :num_heads], q)
    assert_near(cache[0, step.out_locs], k)
    assert_near(cache[1, step.out_locs], v)
    assert torch.equal(qkv[:, num_heads:], step.qkv[:, num_heads:])
    others = torch.ones(NUM_LOCS, dtype=torch.bool)
    others[step.out_locs] = False
    assert cache[:, others].isnan().all()


@pytest.mark.parametrize("norm", [False, True])
def test_the_reference_does_the_same(norm: bool) -> None:
    step = projected(6, 2, 64, torch.float32, norm=norm)

    qkv, cache = step.run(reference, torch.device("cpu"))

    q, k, v = in_float64(step)
    assert_near(qkv[:, :6], q)
    assert_near(cache[0, step.out_locs], k)
    assert_near(cache[1, step.out_locs], v)


def test_padding_tokens_may_share_a_loc_of_the_dummy_page(device: torch.device) -> None:
    step = projected(4, 2, 64, torch.float32, norm=True)
    step.out_locs[3:] = 47

    qkv, cache = step.run(rotary_store, device)

    assert qkv.isfinite().all()
    assert cache[:, 47].isfinite().all()
