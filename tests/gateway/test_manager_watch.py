"""What a gateway makes of a manager's words and of its silence."""

from __future__ import annotations

import pytest

from gateway.manager_watch import ManagerWatch


@pytest.fixture
def watch() -> ManagerWatch:
    """Of a manager that serves, and spoke at 100 s."""
    watch = ManagerWatch(silence_s=3.0, now_s=99.0)
    watch.heard(100.0)
    watch.told(100.0, serving=True)
    watch.look(100.0)
    return watch


def looked_on(watch: ManagerWatch, start_s: float, end_s: float) -> bool:
    """Whether it became silent, looked at every half second."""
    times = [start_s + nth / 2 for nth in range(1, int(2 * (end_s - start_s)) + 1)]
    return sum(watch.look(now_s) for now_s in times) > 0  # every look counts


def test_before_the_first_session_nothing_serves() -> None:
    watch = ManagerWatch(silence_s=3.0, now_s=99.0)
    assert not looked_on(watch, 99.0, 199.0), "there is nobody to be silent"
    assert (watch.serves, watch.outage_since_s) == (False, 99.0)


def test_one_that_speaks_each_second_is_not_silent(watch: ManagerWatch) -> None:
    for second in range(100, 120):
        watch.heard(second)
        assert not looked_on(watch, second, second + 1)
    assert (watch.serves, watch.outage_since_s) == (True, None)


def test_silence_is_told_once_and_is_an_outage(watch: ManagerWatch) -> None:
    assert looked_on(watch, 100.0, 103.5)
    assert not looked_on(watch, 103.5, 110.0)
    assert (watch.serves, watch.silent, watch.outage_since_s) == (False, True, 103.5)
    assert watch.heard(111.0)
    assert (watch.serves, watch.outage_since_s) == (True, None)


def test_the_time_that_this_process_stood_still_is_no_silence(watch: ManagerWatch) -> None:
    watch.look(100.5)
    assert not watch.look(160.5)
    assert watch.serves
    assert looked_on(watch, 160.5, 164.0)


def test_a_lost_session_is_an_outage_and_no_silence(watch: ManagerWatch) -> None:
    watch.lost(101.0)
    assert not looked_on(watch, 101.0, 120.0)
    assert (watch.serves, watch.silent, watch.outage_since_s) == (False, False, 101.0)
