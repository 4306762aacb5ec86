"""The gate of the feed-forward part (SwiGLU, Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` [T, n], where `gate_up` [T, 2 * n] has the gates first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
