"""What `bench.gpu.kernels` measures: a kernel at a shape, and what it is held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"
DTYPE = torch.bfloat16
COLD_BYTES = 200e6  # what rotating buffers should have together: more than three L2 caches

Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A kernel at a shape. Each list has one call for each of the rotating buffers.

    Its floor is arithmetic where it has `flops`, else memory.
    """

    name: str
    shape: str
    num_bytes: int  # that one call must read and write
    ours: list[Call]
    plain: list[Call] = field(default_factory=list)  # the same in torch
    copies: list[Call] = field(default_factory=list)  # a plain copy that moves as many bytes
    reads: list[Call] = field(default_factory=list)  # a plain read of the same bytes
    reads_only: bool = False  # its floor is reading, not copying
    flops: float = 0.0


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DTYPE, device=DEVICE)


def rotations(num_bytes: int) -> int:
    """How many buffers of `num_bytes` to go around: 4 to 64, by what is cold then."""
    return max(4, min(64, int(COLD_BYTES / num_bytes) + 1)) if ON_GPU else 1
