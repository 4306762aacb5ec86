"""Plans ahead of their results."""

from __future__ import annotations

import pytest

from cachesvc.credits import LEAST, MOST, Credits
from tests.cachesvc.builders import submission
from tests.cachesvc.wire import wire


@pytest.mark.parametrize(
    ("device_us", "count"), [(37_000, 2), (2000, 2), (1999, 3), (1000, 3), (999, 4), (1, 4), (0, 4)]
)
def test_short_steps_want_more_of_them_under_way(device_us: int, count: int) -> None:
    ahead = Credits(None)
    assert ahead.count == LEAST
    ahead.note_decode(device_us)
    assert ahead.count == count <= MOST


def test_a_given_number_stays() -> None:
    ahead = Credits(1)
    ahead.note_decode(1)
    assert ahead.count == 1


def test_decode_steps_move_it_and_prompts_do_not() -> None:
    joined = wire(credits=None)  # whose steps take no time
    joined.core.submit(1, submission(1, (5, 6, 7), max_tokens=9))
    most_under_way = []
    for _ in range(4):
        while joined.send() is not None:
            joined.deliver_plan()
        most_under_way.append(joined.core.stream.under_way)
        joined.execute()
        joined.deliver_answer()
    assert most_under_way == [2, 2, 4, 4]  # the first result is a prompt's
