"""Without a GPU, kernels run in Triton's interpreter. Triton reads that when a kernel is decorated,
so it is said before anything, transformers among it, imports triton.
"""

from __future__ import annotations

import os
from pathlib import Path

HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*"))
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"
