"""The largest step is one that the rows can take."""

from __future__ import annotations

from typing import Any

import pytest

from runnersvc.capacity import Capacity
from runnersvc.trial import largest_plan


def capacity(**changes: Any) -> Capacity:
    given = {
        "page_size": 16,
        "max_running_reqs": 4,
        "max_seq_len": 100,
        "max_step_tokens": 64,
        "max_graph_rows": 8,
    }
    return Capacity(**given | changes)


@pytest.mark.parametrize(
    ("changes", "lens"),
    [
        ({}, [61, 1, 1, 1]),
        ({"max_step_tokens": 250}, [83, 83, 83, 1]),
        ({"max_step_tokens": 1000}, [100, 100, 100, 100]),
        ({"max_running_reqs": 1}, [64]),
        ({"max_running_reqs": 64, "max_step_tokens": 8}, [4, 1, 1, 1, 1]),
    ],
)
def test_prompts_take_what_single_tokens_leave(changes: dict[str, int], lens: list[int]) -> None:
    made = capacity(**changes)
    plan = largest_plan(made)
    assert plan.step_extend_lens.tolist() == lens
    assert plan.step_extend_lens.sum() <= made.max_step_tokens
    assert plan.step_extend_lens.max() <= made.max_seq_len
    assert plan.step_samples.all()
