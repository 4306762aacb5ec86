"""Norm, rotary embedding and gate, against their formulas in float64."""

from __future__ import annotations

import pytest
import torch

from kernels.reference.rms_norm import add_rms_norm, rms_norm
from kernels.reference.rotary import rotary, rotary_tables
from kernels.reference.silu_mul import silu_mul

pytestmark = pytest.mark.torch

DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1e-2}


def assert_near(out: torch.Tensor, expected: torch.Tensor) -> None:
    error = (out.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error <= TOLERANCE[out.dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_divides_by_the_root_mean_square(dtype: torch.dtype) -> None:
    x, weight = (torch.randn(5, 48) * 30).to(dtype), torch.randn(48).to(dtype)

    out = rms_norm(x, weight, 1e-5)

    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert out.dtype == dtype
    assert_near(out, expected)


def test_add_rms_norm_adds_in_place_and_norms_the_sum() -> None:
    residual, delta, weight = torch.randn(3, 5, 48).unbind()
    total = residual.double() + delta.double()

    out = add_rms_norm(residual, delta, weight[0], 1e-5)

    assert_near(residual, total)
    assert_near(out, rms_norm(total, weight[0].double(), 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gate_is_silu_of_the_first_half_times_the_second(dtype: torch.dtype) -> None:
    gate_up = torch.randn(3, 32).to(dtype)

    out = silu_mul(gate_up)

    gate, up = gate_up.double().chunk(2, dim=-1)
    assert out.dtype == dtype
    assert_near(out, gate / (1 + torch.exp(-gate)) * up)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotary_turns_each_pair_by_position_times_frequency(dtype: torch.dtype) -> None:
    x = torch.randn(4, 3, 8).to(dtype)
    inv_freq = torch.tensor([1.0, 0.1, 0.01, 0.001])
    positions = torch.tensor([0, 1, 7, 99])
    cos, signed_sin = rotary_tables(inv_freq, 100)

    out = rotary(x, cos[positions], signed_sin[positions])

    pairs = torch.complex(x[..., :4].double(), x[..., 4:].double())
    angles = positions[:, None, None] * inv_freq.double()
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    assert out.dtype == dtype
    assert_near(out, torch.cat((turned.real, turned.imag), dim=-1))


def test_position_zero_is_not_turned() -> None:
    x = torch.randn(1, 2, 8)
    cos, signed_sin = rotary_tables(torch.rand(4), 1)

    assert torch.equal(rotary(x, cos, signed_sin), x)
