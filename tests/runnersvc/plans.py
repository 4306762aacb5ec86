"""Plans of one request: the prompt 1, 2, 3 on row 0, with what the fake memory answers."""

from __future__ import annotations

from typing import Any

from servicekit.plan import Plan
from tests.cachesvc.builders import plan, row_open
from tests.cachesvc.fake_runner import continuation

ANSWER = continuation([1, 2, 3], seed=1, count=9, vocab_size=16)


def prefill(plan_id: int = 1, **changes: Any) -> Plan:
    """Opens row 0 on page 0 with the prompt 1, 2, 3."""
    fields: dict[str, Any] = {
        "reset_rows": True,
        "open_rows": (row_open(0),),
        "write_rows": [0] * 4,
        "write_positions": [0, 1, 2, 3],
        "write_locs": [0, 1, 2, 3],
        "step_rows": [0],
        "step_cached_lens": [0],
        "step_extend_lens": [3],
        "step_num_literals": [3],
        "step_samples": [True],
        "literal_ids": [1, 2, 3],
    }
    return plan(plan_id, **{**fields, **changes})


def decode(plan_id: int, cached_len: int, **changes: Any) -> Plan:
    """Row 0 computes the token it sampled last; position 4 begins page 1."""
    fields: dict[str, Any] = {
        "step_rows": [0],
        "step_cached_lens": [cached_len],
        "step_extend_lens": [1],
        "step_num_literals": [0],
        "step_samples": [True],
    }
    if cached_len == 4:
        fields |= {
            "write_rows": [0] * 4,
            "write_positions": [4, 5, 6, 7],
            "write_locs": [4, 5, 6, 7],
        }
    return plan(plan_id, **{**fields, **changes})
