"""A matrix of weights, laid out for the device it is on, with what stands before and after it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from runnersvc.ops import Ops

_PACKED_FOR_TOKENS = 8  # oneDNN's layout for so many rows of input; measured best from 1 to 512


class Linear:
    """`x @ weight.T` of `x`, or of its RMS norm; then its gate, or plus a residual.

    On a CPU the weight is laid out once as oneDNN wants it, through the operators that torch's own
    compiler uses for this: twice as fast as F.linear for one token, three times for eight. On a GPU
    few tokens go through a kernel that does all of this in one launch, where that is faster.
    """

    def __init__(
        self,
        weight: Tensor,
        ops: Ops,
        *,
        norm: Tensor | None = None,
        eps: float = 0.0,
        gated: bool = False,
    ) -> None:
        self._ops = ops
        self._norm, self._eps = norm, eps
        self._gated = gated
        self._packed = _can_pack(weight)
        self._weight = weight
        self._shape = weight.shape
        if self._packed:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_TOKENS)  # noqa: SLF001

    def __call__(self, x: Tensor, *, add: Tensor | None = None) -> Tensor:
        """`x` [T, in] to [T, out], or half of that when gated; with `add` [T, out] that plus it,
        perhaps in its place.
        """
        ops = self._ops
        if ops.suits_skinny_linear(len(x), *self._shape, x.dtype, gated=self._gated):
            return ops.skinny_linear(
                x, self._weight, norm=self._norm, eps=self._eps, gated=self._gated, add=add
            )
        if self._norm is not None:
            x = ops.rms_norm(x, self._norm, self._eps)
        out = self._product(x, add)
        return ops.silu_mul(out) if self._gated else out

    def _product(self, x: Tensor, add: Tensor | None) -> Tensor:
        if not self._packed:
            return F.linear(x, self._weight) if add is None else add.addmm_(x, self._weight.t())
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
