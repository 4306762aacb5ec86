"""A matrix of weights, laid out for the device it is on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_PACKED_FOR_TOKENS = 8  # oneDNN's layout for so many rows of input; measured best from 1 to 512


class Linear:
    """`x @ weight.T`, optionally added to a residual.

    On a CPU the weight is laid out once as oneDNN wants it, through the operators that torch's own
    compiler uses for this: twice as fast as F.linear for one token, three times for eight.
    """

    def __init__(self, weight: Tensor) -> None:
        self._packed = _can_pack(weight)
        self._weight = weight
        if self._packed:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_TOKENS)  # noqa: SLF001

    def __call__(self, x: Tensor, *, add: Tensor | None = None) -> Tensor:
        """`x` [T, in] to [T, out], plus `add` [T, out]."""
        if not self._packed:
            return F.linear(x, self._weight) if add is None else F.linear(x, self._weight) + add
        linear = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 - torch has no public name for it
        out: Tensor
        if add is None:
            out = linear(x, self._weight, None, "none", [], "")
        else:
            out = linear.binary(x, add, self._weight, None, "add")
        return out


def _can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001 - as above
    return weight.dtype == torch.float32
