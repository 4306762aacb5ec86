"""Rotary frequencies of a model, scaled as its config says."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from runnersvc.families import LinearScaling, Rope


def inverse_frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Rotary frequencies, float32 [head_dim / 2], in radians a token.

    Linear scaling is position interpolation (Chen et al. 2023, arXiv:2306.15595); the other is that
    of Llama 3.1 (`apply_scaling` in https://github.com/meta-llama/llama-models).
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    scaling = rope.scaling
    if scaling is None:
        return frequencies
    if isinstance(scaling, LinearScaling):
        return frequencies / scaling.factor
    turns = scaling.original_max_seq_len / (2 * math.pi / frequencies)  # in the original context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = ((turns - low) / (high - low)).clamp(0, 1)  # of the unscaled frequency
    return frequencies * share + frequencies / scaling.factor * (1 - share)
