"""Whether kernels are interpreted, and what every kernel does differently then; how one kernel
begins before the one in front of it has ended.

Triton decides when a kernel is decorated: TRITON_INTERPRET=1 in the environment, before triton is
first imported, has numpy execute the kernels, on tensors of the CPU. There bfloat16 is a uint16:
loads, stores and casts are right (a cast down truncates), but products, sums and `tl.dot` work on
the bits. So every kernel widens to float32 right after its loads and narrows right before its
stores; only what goes into `tl.dot` stays narrow when compiled, which is what `dot` is for.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


def _can_overlap() -> bool:
    """Whether kernels are for a card with programmatic dependent launch, as those since Hopper are;
    what is compiled without a card at hand is.
    """
    if INTERPRETED:
        return False
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() >= (9, 0)


OVERLAPS = tl.constexpr(_can_overlap())
OVERLAP = {"launch_pdl": True} if OVERLAPS else {}  # of every launch


def interpreted() -> bool:
    """Whether numpy executes the kernels of this process."""
    return bool(INTERPRETED.value)


@triton.jit
def dot(a, b, acc):
    """`acc + a @ b`: `a` [M, K], `b` [K, N], `acc` float32 [M, N]. Float32 is never cut to TF32."""
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def begin_program():
    """The first thing of every kernel: lets the next one's programs come as soon as there is room,
    and returns when the kernel before, and so every one before that, has ended and what it wrote
    can be seen. What no kernel writes may be read between the two halves of it.
    """
    let_next_come()
    wait_for_previous()


@triton.jit
def let_next_come():
    """See `begin_program`."""
    if OVERLAPS:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous():
    """See `begin_program`."""
    if OVERLAPS:
        gdc_wait()
