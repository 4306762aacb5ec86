"""What a runner is made for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of rows and steps; how many pages there are is found from memory."""

    page_size: int
    max_running_reqs: int
    max_seq_len: int
    max_step_tokens: int  # of one step
    max_graph_rows: int  # decode steps of more rows run without a CUDA graph; 0: all do
