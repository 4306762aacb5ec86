"""The largest step that a runner may be told to execute, as a plan."""

from __future__ import annotations

import numpy as np

from runnersvc.capacity import Capacity
from servicekit.arith import ceil_div
from servicekit.plan import Plan


def largest_plan(capacity: Capacity) -> Plan:
    """A step of `max_step_tokens` literal tokens, or what the rows can take of these: prompts as
    long as they may be, one token each in the rows that are left, and every row samples.

    It writes no page table: where no plan has, every position is in the dummy page.
    """
    rows, longest = capacity.max_running_reqs, capacity.max_seq_len
    prompts = min(rows, ceil_div(capacity.max_step_tokens, longest))
    singles = min(rows - prompts, capacity.max_step_tokens // 2)
    left = min(capacity.max_step_tokens - singles, prompts * longest)
    lens = np.ones(prompts + singles, dtype=np.int32)
    lens[:prompts] = left // prompts
    lens[0] += left % prompts if lens[0] < longest else 0
    nothing = np.zeros(0, dtype=np.int32)
    return Plan(
        manager_id="",
        plan_id=0,
        acked_plan_id=0,
        reset_rows=False,
        close_rows=nothing,
        open_rows=(),
        write_rows=nothing,
        write_positions=nothing,
        write_locs=nothing,
        step_rows=np.arange(len(lens), dtype=np.int32),
        step_cached_lens=np.zeros(len(lens), dtype=np.int32),
        step_extend_lens=lens,
        step_num_literals=lens,
        step_samples=np.ones(len(lens), dtype=np.bool_),
        literal_ids=np.zeros(int(lens.sum()), dtype=np.int32),
    )
