"""Deaths of the manager at moments that random histories come upon seldom."""

from __future__ import annotations

from cachesvc.core import Core
from cachesvc.limits import Limits
from tests.cachesvc.builders import describe, submission
from tests.cachesvc.directed_histories import HISTORIES as OTHERS
from tests.cachesvc.directed_histories import ONES, History, world
from tests.cachesvc.troubled_world import TroubledWorld
from tests.cachesvc.wire import Wire

HISTORIES: list[History] = list(OTHERS)


def history(act: History) -> History:
    HISTORIES.append(act)
    return act


@history
def the_manager_dies_with_two_plans_at_each_of_their_stations() -> None:
    """What the runner read is executed, and nothing else: two pages a plan."""
    for num_read in range(3):
        for num_executed in range(num_read + 1):
            one = world(budget=8, num_pages=12)
            one.submit(1, submission(1, [1] * 20, max_tokens=3))
            one.send()
            one.send()
            for nth in range(num_read):
                one.deliver_plan()
                if nth < num_executed:
                    one.execute()
            assert one.kill_the_manager() == 2 * num_read
            one.check_end()


@history
def a_number_comes_again_after_a_death() -> None:
    """Plan 2 was written down and never read; the next manager's plan 2 fills the same page with
    other tokens, and that one dies too.
    """
    one = world(num_pages=3)
    one.submit(1, submission(1, [1, 2], max_tokens=1))
    one.round()
    one.submit(1, submission(2, [2] * 4, max_tokens=4))
    one.send()
    one.leave((1, 2))
    one.kill_the_manager()
    one.submit(1, submission(3, [3] * 4, max_tokens=4))
    one.send_to_the_device()
    assert one.kill_the_manager() == 1
    one.submit(1, submission(4, [2] * 6, max_tokens=1))
    one.check_end()


@history
def a_number_comes_again_after_a_refusal() -> None:
    """The refused plan was to fill a page; the plan of its number fills it with other tokens."""
    one = world(num_pages=4)
    one.submit(1, submission(1, [1, 2], max_tokens=1))
    one.round()
    one.submit(1, submission(2, [2] * 4, max_tokens=4))
    one.send()
    one.damage_last_plan("extend")
    one.leave((1, 2))
    one.core.cancel(1, 2)
    one.deliver_plan()
    one.execute()
    one.deliver_answer()
    one.submit(1, submission(3, [3] * 4, max_tokens=4))
    one.send_to_the_device()
    assert one.kill_the_manager() == 1
    one.submit(1, submission(4, [2] * 6, max_tokens=1))
    one.check_end()


@history
def a_refused_plan_evicts_a_page() -> None:
    """It never happened, so the page still holds what it held, if its manager dies right then."""
    one = world(num_pages=3, credits=1)
    one.submit(1, submission(1, [*ONES, 2], max_tokens=1))
    while one.round():
        pass
    one.submit(1, submission(2, [2] * 9, max_tokens=1))
    one.send()
    assert one.manager.evicted_total == 2
    one.damage_last_plan("extend")
    one.deliver_plan()
    assert one.kill_the_manager() == 2
    one.check_end()


@history
def a_page_is_evicted_and_given_out_and_not_full_yet() -> None:
    """Its former ids are not in it any more, once that plan is executed."""
    one = world(num_pages=3, credits=1)
    for key in (1, 2, 3):
        one.submit(1, submission(key, [key] * 4, max_tokens=1))
        while one.round():
            pass
    one.submit(1, submission(4, [4] * 5, max_tokens=3))
    one.send_to_the_device()
    assert one.manager.evicted_total == 2
    assert one.kill_the_manager() == 2  # one of threes, one of fours
    one.submit(1, submission(5, [1] * 5, max_tokens=1))
    one.check_end()


@history
def a_salt_outlives_its_manager() -> None:
    one = world(num_pages=12, credits=1)
    for key, salt in ((1, ""), (2, "salt")):
        one.submit(1, submission(key, ONES, max_tokens=4, cache_salt=salt))
        one.send_to_the_device()
        one.deliver_answer()
    assert one.kill_the_manager() == 4
    one.check_end()


@history
def a_row_goes_on_with_the_page_of_another() -> None:
    """Equal prompts but for their ends, in one step: the second's first pages are duplicates, and
    its third one stands on those of the first.
    """
    one = world(num_pages=12)
    for key in (1, 2):
        one.submit(1, submission(key, [*ONES, *[key] * 4], max_tokens=6))
    one.round()
    one.send_to_the_device()
    assert one.kill_the_manager() == 4
    one.check_end()


@history
def what_was_sampled_is_not_shared_yet() -> None:
    """Full pages of known ids are taken over all the same."""
    one = TroubledWorld(describe(num_pages=12), budget=64, credits=2, share_stride_tokens=64)
    one.submit(1, submission(1, [1, 2, 3], max_tokens=16))
    for _ in range(12):
        one.round()
    assert one.manager.tree.locked_count == 0
    assert one.kill_the_manager() == 3
    one.check_end()


@history
def two_managers_take_turns() -> None:
    """Each finds that another drove the runner, and takes nothing for its own, alive or not."""
    one = world(num_pages=12)
    one.submit(1, submission(1, ONES, max_tokens=8))
    one.round()
    one.round()
    one.wire.cut()
    one.let_a_stranger_drive(4, seed=9, num_steps=3, reads_last=True)
    one.attach()
    assert one.manager.tree.evictable_count == 0
    one.round()
    one.wire.cut()
    one.let_a_stranger_drive(5, seed=10, num_steps=2, reads_last=False)
    assert one.kill_the_manager() == 0
    one.check_end()


@history
def another_manager_uses_the_numbers_of_plans_that_were_lost() -> None:
    """They were written down, and say of pages what they do not hold."""
    one = world(num_pages=12, budget=8)
    one.submit(1, submission(1, [1] * 20, max_tokens=4))
    one.send_to_the_device()
    one.deliver_answer()
    one.send()
    one.send()
    one.wire.cut()
    one.let_a_stranger_drive(4, seed=9, num_steps=1, reads_last=True)
    assert one.wire.runner.last_executed <= one.core.stream.last_plan_id
    assert one.kill_the_manager() == 0
    one.check_end()


@history
def a_stream_is_lost_before_the_first_plan_of_a_manager() -> None:
    """Nobody drove the runner since the one before, so what was adopted stays, and plans that were
    not read come again.
    """
    one = world(num_pages=12, budget=8)
    one.submit(1, submission(1, [1] * 18, max_tokens=4))
    one.round()
    assert one.kill_the_manager() == 2
    for _ in range(2):
        one.send()
        one.wire.cut()
        one.attach()
    assert one.core.totals.resent_plans == 1 + 2
    one.check_end()


@history
def a_stranger_attaches_twice_and_drives_nothing() -> None:
    """The results that wait for us are not his to take."""
    one = world(num_pages=12)
    one.submit(1, submission(1, ONES, max_tokens=6))
    for _ in range(2):
        one.send()
        one.deliver_plan()
        one.execute()
    one.wire.cut()
    stranger = Wire(Core(Limits(step_budget_tokens=3, credits=2)), one.wire.runner)
    for _ in range(2):
        stranger.attach()
        stranger.cut()
    one.attach()
    one.check_end()


@history
def managers_die_one_after_the_other() -> None:
    """Each before its first plan, with its first plan unread, and with it executed."""
    one = world(num_pages=12, budget=8)
    one.submit(1, submission(1, [1] * 18, max_tokens=4))
    one.round()
    assert one.kill_the_manager() == 2
    assert one.kill_the_manager() == 2
    one.send()
    assert one.kill_the_manager() == 2
    one.send()
    one.deliver_plan()
    assert one.kill_the_manager() == 4
    one.check_end()


@history
def the_runner_dies_and_then_the_manager() -> None:
    """The journal of another memory says nothing."""
    one = world(num_pages=12)
    one.submit(1, submission(1, ONES, max_tokens=8))
    one.round()
    one.boot_another_runner(page_size=4)
    assert one.kill_the_manager() == 0
    one.check_end()
