"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864); pairs are (i, i + half)."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_tables(inv_freq: Tensor, max_seq_len: int) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of the positions below `max_seq_len`, each [max_seq_len, head_dim].

    `inv_freq` is float32 [head_dim / 2], in radians a token. The sines of the first half carry the
    minus of the rotation, so that `rotary` needs no negation.
    """
    positions = torch.arange(max_seq_len, dtype=torch.float32, device=inv_freq.device)
    angles = positions[:, None] * inv_freq
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotary(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotates `x` [T, num_heads, head_dim] by table rows [T, head_dim]; float32 inside."""
    half = x.shape[-1] // 2
    wide = x.float()
    swapped = torch.cat((wide[..., half:], wide[..., :half]), dim=-1)
    return (wide * cos[:, None]).addcmul_(swapped, signed_sin[:, None]).to(x.dtype)
