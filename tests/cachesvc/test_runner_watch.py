"""A runner that hangs is told from a slow one by the answers that are due."""

from __future__ import annotations

from typing import Any

import pytest

from cachesvc.core import Core
from cachesvc.limits import Limits
from tests.cachesvc.builders import describe, submission
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.wire import Wire, answer

SILENCE_S = 3.0


class Watched(Wire):
    """A manager that has had a result of each kind of plan, and a clock."""

    def __init__(self) -> None:
        limits = Limits(step_budget_tokens=64, credits=2, runner_silence_s=SILENCE_S)
        super().__init__(Core(limits), FakeRunner(describe()))
        self.now_s = 100.0
        self.attach()
        self.core.submit(1, submission(1, max_tokens=5))
        self.step()  # a prompt of three tokens, and one token
        self.step()

    def wait(self, seconds: float) -> None:
        """Time passes as it does: tick by tick."""
        for _ in range(round(seconds * 10)):
            self.now_s += 0.1
            self.core.tick(self.now_s)


@pytest.fixture
def joined() -> Watched:
    return Watched()


def test_a_plan_without_an_answer_for_too_long_is_silence(
    joined: Watched, log_lines: list[Any]
) -> None:
    joined.send()
    joined.send()
    joined.wait(SILENCE_S - 0.2)
    assert joined.core.serving
    joined.wait(0.4)
    assert not joined.core.serving
    assert joined.core.watch.silent
    joined.wait(5)
    assert log_lines == [
        {
            "event": "runner silent",
            "log_level": "warning",
            "plans_in_flight": 2,
            "silent_s": pytest.approx(SILENCE_S, abs=0.2),
        }
    ], "once"


def test_the_next_answer_ends_it_and_nothing_is_lost(joined: Watched, log_lines: list[Any]) -> None:
    joined.send()
    joined.send()
    joined.wait(9)
    joined.deliver_plan()
    joined.execute()
    joined.deliver_answer()
    assert joined.core.serving
    told = {"plans_in_flight": 1, "silent_s": pytest.approx(9, abs=0.2)}
    assert log_lines[1:] == [{"event": "runner answers again", "log_level": "info", **told}]
    joined.run_until_idle()
    assert joined.heard.tokens[1, 1] == answer(1)


def test_each_answer_gives_time_for_the_next(joined: Watched) -> None:
    joined.core.submit(1, submission(2, max_tokens=9))
    for _ in range(6):
        joined.send()
        joined.wait(SILENCE_S - 0.2)
        joined.deliver_all()
        assert joined.core.serving


def test_a_refusal_is_an_answer(joined: Watched) -> None:
    plan = joined.send()
    assert plan is not None
    joined.plans[0].step_cached_lens[:] = 9
    joined.wait(9)
    assert not joined.core.serving
    joined.deliver_all()
    assert joined.core.totals.refused == 1
    assert joined.core.serving


def test_an_idle_runner_owes_nothing(joined: Watched) -> None:
    joined.run_until_idle()
    joined.wait(60)
    assert joined.core.serving


def test_a_long_prompt_may_take_long(joined: Watched) -> None:
    """Nothing of that length was measured; three tokens took three microseconds."""
    joined.core.stream._patience.note(3, 1_000_000)
    joined.core.submit(1, submission(2, [1] * 12, max_tokens=3))
    joined.send()
    joined.wait(SILENCE_S + 4)
    assert joined.core.serving
    joined.wait(60)
    assert not joined.core.serving


def test_a_manager_that_stood_still_itself_blames_nobody(joined: Watched) -> None:
    """Answers came meanwhile, and are read after the tick."""
    joined.send()
    joined.core.tick(joined.now_s)
    joined.core.tick(joined.now_s + 3600)
    assert joined.core.serving


def test_a_stream_that_ends_is_not_silent_but_lost(joined: Watched) -> None:
    joined.send()
    joined.wait(9)
    joined.cut()
    assert not joined.core.watch.silent
    assert not joined.core.serving
    joined.wait(9)
    assert not joined.core.watch.silent


def test_attaching_gives_it_all_its_time_again(joined: Watched) -> None:
    joined.send()
    joined.wait(9)
    joined.cut()
    joined.attach()
    joined.wait(SILENCE_S - 0.2)
    assert joined.core.serving
