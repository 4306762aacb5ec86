"""Capturing CUDA graphs, and for which steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

WARM_UPS = 1  # runs before a capture: they compile kernels, and let libraries set themselves up


def captured(run: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    """The graph of what `run` enqueues, which is run before; its memory is in `pool`."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        run()
    return graph


def up_to(most: int, steps: tuple[int, ...]) -> tuple[int, ...]:
    """Those of the ascending `steps` that are less than `most`, and `most`."""
    return (*(step for step in steps if step < most), most)
