"""Norm and gate, against their formulas in float64."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.gpu.rms_norm import add_rms_norm, rms_norm
from kernels.gpu.silu_mul import silu_mul
from tests.kernels.gpu.closeness import BOUNDS, assert_near

WIDTHS = [64, 576, 1024, 2304, 5120]


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_divides_by_the_root_mean_square(
    width: int, dtype: torch.dtype, device: torch.device
) -> None:
    x, weight = (torch.randn(3, width) * 30).to(dtype), torch.randn(width).to(dtype)

    out = rms_norm(x.to(device), weight.to(device), 1e-5)

    assert_near(out.cpu(), normed(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("width", WIDTHS)
def test_add_rms_norm_adds_in_place_and_norms_the_sum(
    width: int, dtype: torch.dtype, device: torch.device
) -> None:
    residual, delta = torch.randn(2, 5, width).to(dtype)
    weight = torch.randn(width).to(dtype)
    added = residual.clone().to(device)

    out = add_rms_norm(added, delta.to(device), weight.to(device), 1e-6)

    total = residual.double() + delta.double()
    assert_near(added.cpu(), total)
    assert_near(out.cpu(), normed(total, weight, 1e-6))


def test_squares_past_the_range_of_float16_are_summed_in_float32(device: torch.device) -> None:
    x = torch.full((1, 64), 300.0, dtype=torch.float16)  # 300 squared is more than 65,504

    out = rms_norm(x.to(device), torch.ones(64, dtype=torch.float16, device=device), 1e-5)

    assert_near(out.cpu(), torch.ones(1, 64, dtype=torch.float64))


def test_a_row_of_nan_spoils_no_other(device: torch.device) -> None:
    x = torch.randn(3, 96)
    x[1] = math.nan
    weight = torch.ones(96)

    out = rms_norm(x.to(device), weight.to(device), 1e-5).cpu()
    gated = silu_mul(x.to(device)).cpu()

    assert_near(out[[0, 2]], normed(x[[0, 2]], weight, 1e-5))
    assert out[1].isnan().all()
    assert gated[1].isnan().all()
    assert gated[[0, 2]].isfinite().all()


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("width", [8, 576, 1024, 1536])
def test_the_gate_is_silu_of_the_first_half_times_the_second(
    width: int, dtype: torch.dtype, device: torch.device
) -> None:
    gate_up = (torch.randn(3, 2 * width) * 4).to(dtype)

    out = silu_mul(gate_up.to(device))

    gate, up = gate_up.double().chunk(2, dim=-1)
    assert_near(out.cpu(), gate / (1 + torch.exp(-gate)) * up)


def test_gates_of_any_magnitude_give_no_nan(device: torch.device) -> None:
    gate_up = torch.tensor([[-1e30, -200.0, 0.0, 200.0] + [1.0] * 4], device=device)

    assert silu_mul(gate_up).tolist() == [[0.0, 0.0, 0.0, 200.0]]


def test_no_tokens_give_no_rows(device: torch.device) -> None:
    none = torch.empty(0, 64, device=device)

    assert rms_norm(none, torch.ones(64, device=device), 1e-5).shape == (0, 64)
    assert silu_mul(none).shape == (0, 32)
