"""Case 6.8: a request whose logits are no numbers fails alone, and leaves nothing in the cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from servicekit.plan import Result
from tests.cachesvc.builders import describe, submission
from tests.cachesvc.truth import truth_of
from tests.cachesvc.wire import Wire, wire

HURT, OTHER = 1, 2
PROMPT = tuple(range(1, 14))  # three full pages of 4 and one id
BEGINS_ALIKE = (*PROMPT[:4], 9, 8, 7, 6, 5)


def break_row(joined: Wire, table_idx: int) -> bool:
    """The runner has no token for this row in the oldest answer. False where it samples none."""
    result = joined.answers[0]
    assert isinstance(result, Result)
    plan = next(plan for plan in joined.sent if plan.plan_id == result.plan_id)
    is_row = plan.step_rows[plan.step_samples] == table_idx
    joined.answers[0] = replace(result, sampled_ids=np.where(is_row, -1, result.sampled_ids))
    return bool(is_row.any())


def run_first_step(joined: Wire) -> None:
    """Its answer is not read yet, and a second plan has put full pages into the tree."""
    joined.send()
    joined.deliver_plan()
    joined.execute()
    joined.send()


def test_case_6_8_what_it_filled_is_hit_by_nobody() -> None:
    joined = wire(credits=2, num_pages=16)
    joined.core.submit(1, submission(HURT, PROMPT))
    run_first_step(joined)
    assert break_row(joined, table_idx=0)
    joined.run_until_idle()
    assert joined.core.live.totals.failed == 1
    manager = joined.core.ready_scheduler().manager
    assert (manager.tree.evictable_count, manager.tree.locked_count) == (0, 0)
    assert manager.pool.free_count == 16
    assert joined.core.check_integrity() == []
    again = submission(OTHER, PROMPT, max_tokens=3)
    joined.core.submit(1, again)
    joined.run_until_idle()
    assert joined.heard.cached_len[1, OTHER] == 0
    assert joined.heard.tokens[1, OTHER] == truth_of(again, describe()).answer


def test_case_6_8_what_another_row_holds_stays_and_that_row_goes_on() -> None:
    joined = wire(credits=2, num_pages=16)
    other = submission(OTHER, BEGINS_ALIKE, max_tokens=6)
    joined.core.submit(1, other)
    run_first_step(joined)
    joined.deliver_answer()
    joined.core.submit(1, submission(HURT, PROMPT))
    for _ in range(2):  # the plan before it came, then its prompt
        joined.send()
        joined.deliver_plan()
        joined.execute()
        is_broken = break_row(joined, table_idx=1)
        joined.deliver_answer()
    assert is_broken
    assert joined.heard.cached_len[1, HURT] == 4
    joined.run_until_idle()
    assert joined.heard.tokens[1, OTHER] == truth_of(other, describe()).answer
    assert joined.heard.tokens[1, HURT] == []
    manager = joined.core.ready_scheduler().manager
    assert manager.tree.evictable_count == (len(BEGINS_ALIKE) + 6 - 1) // 4
    assert joined.core.check_integrity() == []
