"""Books that fail again once they are healed: everything begins on empty ones."""

from __future__ import annotations

from cachesvc.page_pool import PagePool
from servicekit.plan import Int32Array
from tests.cachesvc.builders import submission
from tests.cachesvc.truth import truth_of
from tests.cachesvc.wire import wire


class LosesAPage(PagePool):
    """Takes a page more than it gives, each time."""

    def allocate(self, count: int) -> Int32Array:
        super().allocate(1)
        return super().allocate(count)


def test_every_request_gets_its_answer_on_empty_books_when_healing_does_not_help() -> None:
    joined = wire()
    assert joined.core.scheduler is not None
    joined.core.scheduler.manager.pool = LosesAPage(num_pages=8, page_size=4)
    for key in (1, 2):
        joined.core.submit(1, submission(key, [1, 2, 3, 4, 5], max_tokens=4))
    plan = joined.send()
    assert plan is not None
    assert plan.reset_rows
    joined.run_until_idle()
    for key in (1, 2):
        wanted = submission(key, [1, 2, 3, 4, 5], max_tokens=4)
        assert joined.heard.tokens[1, key] == truth_of(wanted, joined.runner.description).answer
    assert joined.core.check_integrity() == []
    assert joined.core.scheduler.manager.available_count == 8


def test_rows_start_over_on_empty_books_while_plans_are_on_their_way() -> None:
    """Those plans run for nobody; what they sample is not heard."""
    joined = wire()
    wanted = submission(1, [1, 2, 3, 4], max_tokens=8)
    joined.core.submit(1, wanted)
    joined.step()
    joined.send()
    assert joined.core.scheduler is not None
    pool = joined.core.scheduler.manager.pool
    loses = LosesAPage(num_pages=8, page_size=4)
    loses.reset(pool.free_pages[::-1] // 4)
    joined.core.scheduler.manager.pool = loses
    joined.core.submit(1, submission(2, [6, 6], max_tokens=2))
    plan = joined.send()
    assert plan is not None
    assert plan.reset_rows
    joined.run_until_idle()
    assert joined.heard.tokens[1, 1] == truth_of(wanted, joined.runner.description).answer
    assert joined.core.check_integrity() == []
