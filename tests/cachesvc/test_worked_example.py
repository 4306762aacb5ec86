"""The worked example of ARCHITECTURE.md: eight pages of four tokens, from empty to eviction."""

from __future__ import annotations

import numpy as np

from cachesvc.core import Core
from cachesvc.integrity import check_integrity
from cachesvc.limits import Limits
from servicekit.plan import Attached, Plan, Result
from tests.cachesvc.builders import describe, submission

RUNNER = describe(num_rows=2, max_seq_len=32, vocab_size=100)
SAMPLED, END_TOKEN = 50, 99
A, B = list(range(6)), list(range(9))
C = [*A, SAMPLED, SAMPLED, SAMPLED, SAMPLED, 60, 61]


def answer(core: Core, plan: Plan, ended_row: int | None = None) -> None:
    rows = plan.step_rows[plan.step_samples]
    sampled_ids = np.where(rows == ended_row, END_TOKEN, SAMPLED).astype(np.int32)
    core.result(Result(plan.plan_id, sampled_ids, 0, 0, core.stream.due_digest))
    core.take_outputs()


def pages(core: Core) -> tuple[list[int], list[int], int, int, int, int]:
    manager = core.scheduler.manager
    check_integrity(manager)
    tree = manager.tree
    return (
        manager.first_locs(0).tolist(),
        manager.first_locs(1).tolist(),
        manager.pool.free_count,
        tree.evictable_count,
        tree.locked_count,
        manager.private_count,
    )


def test_eight_pages_of_four_tokens_go_from_free_to_evicted_as_the_page_says() -> None:
    core = Core(Limits(step_budget_tokens=64, credits=2))
    core.attached(Attached(RUNNER, "boot", 0, ""))
    plans: list[Plan] = []
    seen = []

    def next_plan() -> None:
        plans.append(core.next_plan())
        seen.append((plans[-1].plan_id, *pages(core)))

    core.submit(1, submission(1, A, stop=[END_TOKEN]))
    next_plan()
    core.submit(1, submission(2, B, stop=[END_TOKEN]))
    next_plan()
    for nth in range(4):
        answer(core, plans[nth])
        next_plan()
    answer(core, plans[4], ended_row=0)
    core.submit(1, submission(3, C, stop=[END_TOKEN]))
    next_plan()
    for nth in range(5, 12):
        answer(core, plans[nth])
        next_plan()

    assert seen == [
        (1, [0, 4], [], 6, 0, 0, 2),
        (2, [0, 4], [0, 8, 12], 4, 0, 1, 3),
        (3, [0, 4], [0, 8, 12], 4, 0, 2, 2),
        (4, [0, 4, 16], [0, 8, 12], 3, 0, 2, 3),
        (5, [0, 4, 16], [0, 8, 12], 3, 0, 2, 3),
        (6, [0, 4, 16], [0, 8, 12, 20], 2, 0, 2, 4),
        (7, [0, 4, 16], [0, 8, 12, 20], 2, 0, 3, 3),
        (8, [0, 4, 16, 24], [0, 8, 12, 20], 1, 0, 4, 3),
        (9, [0, 4, 16, 24], [0, 8, 12, 20], 1, 0, 4, 3),
        (10, [0, 4, 16, 24], [0, 8, 12, 20, 28], 0, 0, 4, 4),
        (11, [0, 4, 16, 24], [0, 8, 12, 20, 28], 0, 0, 4, 4),
        (12, [], [0, 8, 12, 20, 28], 0, 3, 2, 3),
        (13, [], [0, 8, 12, 20, 28], 0, 3, 2, 3),
        (14, [], [0, 8, 12, 20, 28, 24], 0, 2, 2, 4),
    ]
    assert plans[1].step_cached_lens.tolist() == [6, 4]  # B starts behind the page that A filled
    assert plans[6].step_cached_lens.tolist() == [13, 8]  # C behind two pages of A
    assert [plan.close_rows.tolist() for plan in plans[6:12]] == [[0], [], [], [], [], [0]]
    assert plans[0].write_positions.tolist() == plans[0].write_locs.tolist() == list(range(8))
    (preemption,) = core.live.stories.find("request-3").preemptions
    assert (preemption.plan_id, preemption.lacking_pages) == (12, 1)
