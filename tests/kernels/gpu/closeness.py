"""How far a result may be from float64: the same bounds for every kernel, on every machine."""

from __future__ import annotations

import torch
from torch import Tensor

BOUNDS = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}


def assert_near(out: Tensor, expected: Tensor) -> None:
    """Root mean square error over root mean square; a NaN fails. `expected` is float64."""
    assert expected.dtype == torch.float64
    assert out.shape == expected.shape
    error = (out.double().cpu() - expected.cpu()).norm() / expected.cpu().norm()
    assert error <= BOUNDS[out.dtype], f"{out.dtype} is {error:.2e} away from float64"
