"""Matrix products of few tokens, with what comes before and after them in a layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.reference.rms_norm import rms_norm
from kernels.reference.silu_mul import silu_mul


def skinny_linear(
    x: Tensor,
    weight: Tensor,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    add: Tensor | None = None,
) -> Tensor:
    """`x @ weight.T` [T, N] of `x` [T, K] and contiguous `weight` [N, K] of torch.nn.Linear.

    With `norm` [K] the product is that of `rms_norm(x, norm, eps)`, rounded to its dtype. Where
    `gated`, `weight` [2 * I, K] has the gates' rows first, and the result is `silu_mul` [T, I] of
    the rounded product. `add` [T, N] is added to in place and returned: summed in float32, rounded
    once.
    """
    assert not (gated and add is not None), "a gated product is added to nothing"
    if norm is not None:
        x = rms_norm(x, norm, eps)
    if gated:
        return silu_mul(F.linear(x, weight))
    if add is None:
        return F.linear(x, weight)
    wide = torch.promote_types(x.dtype, torch.float32)
    return add.copy_(F.linear(x.to(wide), weight.to(wide)).add_(add))
