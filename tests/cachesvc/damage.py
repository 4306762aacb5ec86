"""Plans with one thing wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from servicekit.plan import Plan, RunnerDescription

KINDS = ("extend", "close", "write", "vocab")


def damaged(plan: Plan, kind: str, runner: RunnerDescription) -> Plan:
    """The plan with one thing wrong, or itself when it has no place for that."""
    if kind == "close":
        return replace(plan, close_rows=np.append(plan.close_rows, np.int32(runner.num_rows)))
    if kind == "extend" and len(plan.step_rows):
        extend_lens = plan.step_extend_lens.copy()
        extend_lens[0] = 0
        return replace(plan, step_extend_lens=extend_lens)
    if kind == "write" and len(plan.write_locs):
        return replace(plan, write_locs=plan.write_locs + runner.pool_tokens)
    if kind == "vocab" and len(plan.literal_ids):
        return replace(plan, literal_ids=plan.literal_ids + runner.vocab_size)
    return plan
