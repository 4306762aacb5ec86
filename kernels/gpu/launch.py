"""Whether kernels are interpreted, and what every kernel does differently then.

Triton decides when a kernel is decorated: TRITON_INTERPRET=1 in the environment, before triton is
first imported, has numpy execute the kernels, on tensors of the CPU. There bfloat16 is a uint16:
loads, stores and casts are right (a cast down truncates), but products, sums and `tl.dot` work on
the bits. So every kernel widens to float32 right after its loads and narrows right before its
stores; only what goes into `tl.dot` stays narrow when compiled, which is what `dot` is for.
"""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


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
