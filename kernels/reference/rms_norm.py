"""Root mean square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x**2) + eps) * weight`, along the last dimension; float32 inside."""
    return F.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(residual: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Adds `delta` to `residual` in place, both [T, n]; returns the sum's `rms_norm`."""
    return rms_norm(residual.add_(delta), weight, eps)
