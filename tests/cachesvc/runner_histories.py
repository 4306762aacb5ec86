"""Deaths of the runner at moments that random histories come upon seldom."""

from __future__ import annotations

from cachesvc.request import ReqState
from tests.cachesvc.builders import submission
from tests.cachesvc.directed_histories import History, world

HISTORIES: list[History] = []


def history(act: History) -> History:
    HISTORIES.append(act)
    return act


@history
def runners_die_of_one_of_a_crowd() -> None:
    """Two do, one that says at which plan and one that does not; the others get their answers."""
    one = world(num_pages=24)
    one.submit(1, submission(1, [1, 2, 3], max_tokens=6))
    one.submit(1, submission(2, [1, 2], max_tokens=1))
    one.submit_poison(1, submission(3, [4, 5, 6], max_tokens=4))
    one.submit(1, submission(4, [7, 8], max_tokens=6))
    one.check_end()
    assert one.num_boots == 3
    assert one.failed == {(1, 3)}


@history
def runners_die_of_one_that_comes_while_others_run() -> None:
    """Its prompt and a token of each of them are in one plan, behind one that goes well."""
    one = world(num_pages=24)
    one.submit(1, submission(1, [1, 2, 3], max_tokens=9))
    one.submit(1, submission(2, [1, 2], max_tokens=1))
    one.send()
    one.submit_poison(1, submission(3, [4, 5, 6], max_tokens=4))
    one.send()
    one.deliver_plan()
    one.deliver_plan()
    one.execute()
    one.deliver_answer()
    one.check_end()
    assert one.num_boots == 3
    assert one.failed == {(1, 3)}


@history
def runners_die_again_and_again_with_tokens_in_between() -> None:
    """Nobody fails of that."""
    one = world(num_pages=24)
    for key in (1, 2, 3):
        one.submit(1, submission(key, [key] * 3, max_tokens=12))
    one.send()
    for _ in range(3):
        one.send()
        one.boot_another_runner(one.description.page_size)
        one.attach()
        one.check()
        while one.deaths.counts:
            one.round()
            one.check()
    one.check_end()
    assert one.failed == set()
    assert one.num_boots == 4


@history
def a_runner_dies_twice_before_the_first_token() -> None:
    """Of all that were in its plans the first is tried again, and is gone with the second; the
    next one is tried when it has ended.
    """
    one = world(num_pages=24)
    for key in (1, 2):
        one.submit(1, submission(key, [key] * 3, max_tokens=5))
    for _ in range(2):
        one.send()
        one.boot_another_runner(one.description.page_size)
        one.attach()
    assert one.failed == {(1, 1)}
    one.submit(1, submission(3, [3] * 3, max_tokens=5))
    one.check_end()


@history
def a_runner_is_killed_with_two_plans_under_way() -> None:
    """The second has a request that the first has not: both are suspects."""
    one = world(num_pages=24)
    one.submit(1, submission(1, [1] * 3, max_tokens=5))
    one.send()
    one.submit(1, submission(2, [2] * 3, max_tokens=5))
    one.send()
    one.boot_another_runner(one.description.page_size)
    one.attach()
    assert one.deaths.counts == {(1, 1): 1, (1, 2): 1}
    assert [req.runner_deaths for req in one.reqs(ReqState.WAITING)] == [1, 1]
    one.check_end()


@history
def a_runner_says_of_which_plan_it_dies() -> None:
    """The next one was read and not begun: who is in it is no suspect."""
    one = world(num_pages=24)
    one.submit_poison(1, submission(1, [1] * 3, max_tokens=5))
    one.send()
    one.submit(1, submission(2, [2] * 3, max_tokens=5))
    one.send()
    one.deliver_plan()
    one.deliver_plan()
    one.execute()
    assert [req.runner_deaths for req in one.reqs(ReqState.WAITING)] == [1, 0]
    one.check_end()
    assert one.failed == {(1, 1)}
