"""The worked example of ARCHITECTURE.md: eight pages of four tokens, from empty to preemption."""

from __future__ import annotations

import numpy as np

from cachesvc.core import Core
from cachesvc.limits import Limits
from servicekit.plan import Attached, Plan, Result
from tests.cachesvc.builders import describe, submission

RUNNER = describe(num_rows=2, max_seq_len=32, vocab_size=100)
END_TOKEN = 99


def submit(core: Core, key: int, prompt_len: int) -> None:
    core.submit(1, submission(key, range(prompt_len), stop=[END_TOKEN]))


def answer(core: Core, plan: Plan, ended_row: int | None = None) -> None:
    rows = plan.step_rows[plan.step_samples]
    sampled_ids = np.where(rows == ended_row, END_TOKEN, 50).astype(np.int32)
    core.result(Result(plan.plan_id, sampled_ids, 0, 0))
    core.take_outputs()


def pages(core: Core) -> tuple[list[int], list[int], int]:
    manager = core.scheduler.manager
    manager.check_integrity()
    rows = [manager.first_locs(idx).tolist() for idx in range(2)]
    return rows[0], rows[1], manager.pool.free_count


def test_eight_pages_of_four_tokens_go_from_free_to_preempted_as_the_page_says() -> None:
    core = Core(Limits(step_budget_tokens=64, credits=2))
    core.attached(Attached(RUNNER, "boot", 0, ""))
    plans: list[Plan] = []
    seen = []

    def next_plan() -> None:
        plans.append(core.next_plan())
        seen.append((plans[-1].plan_id, *pages(core)))

    submit(core, 1, 6)
    next_plan()
    submit(core, 2, 9)
    next_plan()
    for nth in range(4):
        answer(core, plans[nth])
        next_plan()
    answer(core, plans[4], ended_row=0)
    submit(core, 3, 15)
    next_plan()
    for nth in range(5, 8):
        answer(core, plans[nth])
        next_plan()

    assert seen == [
        (1, [0, 4], [], 6),
        (2, [0, 4], [8, 12, 16], 3),
        (3, [0, 4], [8, 12, 16], 3),
        (4, [0, 4, 20], [8, 12, 16], 2),
        (5, [0, 4, 20], [8, 12, 16], 2),
        (6, [0, 4, 20], [8, 12, 16, 24], 1),
        (7, [0, 4, 20, 28], [8, 12, 16, 24], 0),
        (8, [0, 4, 20, 28], [8, 12, 16, 24], 0),
        (9, [], [8, 12, 16, 24], 4),
        (10, [], [8, 12, 16, 24, 0], 3),
    ]
    assert [plan.close_rows.tolist() for plan in plans[6:9]] == [[0], [], [0]]
    assert plans[0].write_positions.tolist() == plans[0].write_locs.tolist() == list(range(8))
