"""Histories that random ones come upon seldom. Each passes; with a bug planted, one fails."""

from __future__ import annotations

from collections.abc import Callable

from cachesvc.request import ReqState
from tests.cachesvc.broken_books import a_page_of_the_tree_is_free_too
from tests.cachesvc.builders import describe, submission
from tests.cachesvc.troubled_world import TroubledWorld

History = Callable[[], None]
HISTORIES: list[History] = []

ONES = [1] * 8  # two pages of four


def history(act: History) -> History:
    HISTORIES.append(act)
    return act


def world(*, credits: int = 2, budget: int = 64, **changes: object) -> TroubledWorld:
    return TroubledWorld(describe(**changes), budget=budget, credits=credits)


@history
def a_result_is_lost_that_is_not_acknowledged_yet() -> None:
    """Plan 1 is executed and plan 2 is read when the stream is lost, with the result of plan 1 on
    its way.
    """
    one = world()
    one.submit(1, submission(1, [1, 2, 3], max_tokens=8))
    assert one.send()
    assert one.send()
    one.deliver_plan()
    one.execute()
    one.deliver_plan()
    one.wire.cut()
    one.attach()
    one.check_end()


@history
def plans_are_lost_that_the_runner_never_read() -> None:
    one = world()
    one.submit(1, submission(1, [1, 2, 3], max_tokens=8))
    one.send()
    one.send()
    one.deliver_plan()
    one.wire.cut()
    one.attach()
    one.check_end()


@history
def a_plan_is_refused_before_the_one_ahead_of_it_is_executed() -> None:
    """The refusal has to wait for the result of that one."""
    one = world()
    one.submit(1, submission(1, [1, 2, 3], max_tokens=8))
    one.send()
    one.send()
    one.damage_last_plan("extend")
    one.deliver_plan()
    one.deliver_plan()
    one.check_end()


@history
def another_manager_left_results_at_the_runner() -> None:
    """They are of no plan of ours, though plans of ours will have the same numbers."""
    one = world()
    one.submit(1, submission(1, [1, 2, 3], max_tokens=8))
    one.round()
    one.wire.cut()
    one.let_a_stranger_drive(4, seed=9, num_steps=1, reads_last=False)
    one.attach()
    one.check_end()


@history
def a_request_is_cancelled_in_the_step_that_finishes_it() -> None:
    """The result that ends it was read, and its session did not hear so yet."""
    one = world()
    one.submit(1, submission(1, [1, 2, 3], max_tokens=1))
    one.send()
    one.deliver_plan()
    one.execute()
    one.core.result(one.wire.answers.popleft())
    one.core.cancel(1, 1)
    one.submit(1, submission(2, [4, 5], max_tokens=3))
    one.check_end()


@history
def a_request_is_cancelled_between_a_plan_and_its_result() -> None:
    """Its page is full once both plans are executed, and nobody here knows yet of what."""
    one = world()
    for key, prompt in ((1, ONES), (2, [1, 2, 3])):
        one.submit(1, submission(key, prompt, max_tokens=6))
    one.send()
    one.send()
    one.leave((1, 2))
    one.core.cancel(1, 2)
    one.check_end()


@history
def equal_prompts_are_computed_in_one_step() -> None:
    """The second row's pages are duplicates; the next request takes them at once."""
    one = world()
    for key in (1, 2):
        one.submit(1, submission(key, ONES, max_tokens=6))
    one.round()
    one.send()
    one.submit(1, submission(3, [2] * 9, max_tokens=3))
    one.check_end()


@history
def a_row_is_remapped_and_preempted_in_one_plan() -> None:
    """Three rows fill their second pages at once and no page is free: that of the last, which
    samples what the first does, is a duplicate, and one free page is still not enough: it is
    preempted, gives no page back, and so is the one before it.
    """
    one = world(num_pages=5, credits=1)
    for key, seed in ((1, 7), (2, 8), (3, 7)):
        one.submit(1, submission(key, [seed - 6] * 3, seed=seed, max_tokens=9))
    preempted = []
    while not preempted:
        one.round()
        preempted = [req for req in one.reqs(ReqState.WAITING) if req.story.preemptions]
    assert [req.key for req in preempted] == [2, 3]
    one.check_end()


@history
def a_plan_is_refused_after_which_another_was_sent_that_fills_pages() -> None:
    """Neither plan happened, so none of their pages may be found by the next one who asks."""
    one = world(num_pages=12, budget=8)
    one.submit(1, submission(1, [1, 2, 3], max_tokens=8))
    one.round()
    one.submit(1, submission(2, ONES, max_tokens=4))
    one.send()
    one.damage_last_plan("write")
    one.send()
    one.submit(1, submission(3, ONES, max_tokens=4))
    one.check_end()


@history
def a_request_does_not_fit_beside_what_it_finds_cached() -> None:
    """Case 1.6, briefly: it waits, and holds nothing meanwhile."""
    one = world(page_size=1, num_pages=8, credits=1)
    one.submit(1, submission(1, [1, 2, 3, 4], max_tokens=1))
    while one.round():
        pass
    one.submit(1, submission(2, [5, 5], max_tokens=2))
    one.send()
    one.submit(1, submission(3, [1, 2, 3, 4, 6, 6, 6], max_tokens=1))
    one.check_end()


@history
def equal_prompts_are_admitted_in_one_step_and_the_budget_is_short() -> None:
    """The second would find pages that the plan with both of them is to fill."""
    one = world(budget=6, num_pages=12)
    for key in (1, 2, 3):
        one.submit(1, submission(key, ONES, max_tokens=2))
    one.check_end()


@history
def the_clock_decides_between_priorities() -> None:
    """A class is worth ten seconds: who came eleven seconds before goes first."""
    one = world(num_rows=1)
    one.submit(1, submission(1, [1], max_tokens=4, priority=5))
    one.submit(1, submission(2, [2], max_tokens=2))
    one.pass_time(11)
    one.submit(1, submission(3, [3], max_tokens=2, priority=1))
    one.submit(1, submission(4, [4], max_tokens=2, priority=2))
    one.check()
    assert [req.key for req in one.reqs(ReqState.WAITING)] == [1, 4, 2, 3]
    one.check_end()


@history
def a_page_that_a_row_holds_is_claimed_twice() -> None:
    """Its request fails, the other one does not, and the page is given to nobody."""
    one = world(num_pages=12)
    one.submit(1, submission(1, ONES, max_tokens=6))
    one.round()
    one.submit(1, submission(2, [2] * 3, max_tokens=6))
    one.send()
    one.damage_and_recount(a_page_of_the_tree_is_free_too)
    assert one.failed == {(1, 1)}
    assert one.manager.quarantined == {1}
    one.check_end()


@history
def what_was_used_last_is_evicted_last() -> None:
    """The pages of ones were cached first and used again since; one of twos goes for the threes."""
    one = world(num_pages=6)
    for key, token_id in ((1, 1), (2, 2), (3, 1), (4, 3), (5, 1)):
        one.submit(1, submission(key, [token_id] * 9, max_tokens=1))
        while one.round():
            pass
    assert [one.wire.heard.cached_len[1, key] for key in (3, 4, 5)] == [8, 0, 8]
    one.check_end()
