"""Who waits for whom: long prompts, further choices, priorities, deadlines, a full queue."""

from __future__ import annotations

import pytest

from cachesvc.core import Core
from cachesvc.limits import Limits
from cachesvc.request import FinishCause
from cachesvc.story import WaitCause
from cachesvc.waiting import WaitingQueue
from servicekit.errors import InvalidArgument, ResourceExhausted
from tests.cachesvc.builders import describe, request, submission
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.test_explain import report
from tests.cachesvc.wire import Wire


def wire_with(limits: Limits, **changes: object) -> Wire:
    joined = Wire(Core(limits), FakeRunner(describe(**changes)))
    joined.attach()
    return joined


def roomy(budget: int = 8, **limits: object) -> Wire:
    """Sixteen rows and pages for all; a prompt of more than eight tokens is a long one."""
    given = Limits(step_budget_tokens=budget, credits=1, **limits)  # type: ignore[arg-type]
    return wire_with(given, num_rows=16, num_pages=64)


def opened(joined: Wire) -> list[list[int]]:
    """Seeds of the requests that each plan admits."""
    return [[row.seed for row in plan.open_rows] for plan in joined.sent]


class TestLongPrompts:
    """They wait for each other; shorter ones do not wait for them."""

    def test_a_burst_of_them_holds_up_no_short_one(self) -> None:
        """Everybody behind the first 64 that were passed over was hidden by them."""
        joined = roomy()
        for key in range(1, 100):
            joined.core.submit(1, submission(key, [key % 16] * 20, max_tokens=1))
        joined.core.submit(1, submission(100, [1, 2], max_tokens=1))
        joined.step()
        assert opened(joined)[0] == [1, 100]

    def test_one_that_is_cached_but_for_a_few_tokens_is_a_short_one(self) -> None:
        joined = roomy()
        joined.core.submit(1, submission(1, [1] * 20, max_tokens=1))
        joined.run_until_idle()
        joined.core.submit(1, submission(2, [2] * 20, max_tokens=1))
        joined.core.submit(1, submission(3, [1] * 20, max_tokens=1))
        joined.step()
        assert opened(joined)[-1] == [2, 3]

    def test_as_many_as_are_allowed_are_computed_at_once(self) -> None:
        joined = roomy(max_long_prefills=2)
        for key in (1, 2, 3):
            joined.core.submit(1, submission(key, [key] * 20, max_tokens=1))
        joined.step()
        assert opened(joined)[0] == [1, 2]
        assert joined.sent[0].step_extend_lens.tolist() == [6, 2]

    def test_a_short_one_gets_its_half_of_the_budget_and_a_long_one_what_is_left(self) -> None:
        joined = roomy(budget=16)
        joined.core.submit(1, submission(1, [1] * 20, max_tokens=1))
        joined.core.submit(1, submission(2, [2, 2], max_tokens=1))
        joined.step()
        assert joined.sent[0].step_rows.tolist() == [0, 1]
        assert joined.sent[0].step_extend_lens.tolist() == [14, 2]

    def test_explain_tells_whom_they_wait_for(self) -> None:
        joined = roomy()
        for key in (1, 2, 3):
            joined.core.submit(1, submission(key, [key] * 20, max_tokens=1))
        joined.step()
        (second,), (third,) = report(joined, 2).waits, report(joined, 3).waits
        assert second.cause is WaitCause.LONG_PREFILLS
        assert (third.cause, third.behind) == (WaitCause.BEHIND, 1)


class TestFurtherChoices:
    """They share the first one's prompt, and never hold up who comes after them."""

    def test_many_that_rank_before_the_first_do_not_hide_it(self) -> None:
        """A first choice of a lower class was never looked at: all of them waited for ever."""
        joined = roomy()
        joined.core.submit(1, submission(1, [1] * 5, max_tokens=1, priority=-1))
        for choice in range(1, 80):
            joined.core.submit(
                1, submission(1 + choice, [1] * 5, max_tokens=1, choice=choice, first_choice_key=1)
            )
        joined.run_until_idle()
        assert len(joined.heard.finished) == 80
        assert opened(joined)[0] == [1]

    def test_they_open_on_every_full_page_of_the_prompt(self) -> None:
        joined = roomy()
        joined.core.submit(1, submission(1, [1] * 6, max_tokens=3))
        for choice in (1, 2):
            joined.core.submit(
                1, submission(1 + choice, [1] * 6, max_tokens=3, choice=choice, first_choice_key=1)
            )
        joined.run_until_idle()
        assert opened(joined)[:2] == [[1], [2, 3]]
        assert [row.choice for row in joined.sent[1].open_rows] == [1, 2]
        assert joined.sent[1].step_cached_lens.tolist() == [6, 4, 4]

    def test_one_of_them_takes_the_place_of_a_first_one_that_left_too_early(self) -> None:
        """All of them were admitted at once, and each computed the whole prompt."""
        joined = roomy(budget=2)
        joined.core.submit(1, submission(1, [1] * 6, max_tokens=2))
        for choice in (1, 2):
            joined.core.submit(
                1, submission(1 + choice, [1] * 6, max_tokens=2, choice=choice, first_choice_key=1)
            )
        joined.step()
        joined.core.cancel(1, 1)
        joined.run_until_idle()
        rows = [seeds for seeds in opened(joined) if seeds]
        assert rows == [[1], [2], [3]]
        assert joined.heard.cached_len[1, 3] == 4

    def test_one_whose_first_choice_is_over_waits_for_nobody(self) -> None:
        joined = roomy()
        joined.core.submit(1, submission(2, [1] * 6, max_tokens=1, choice=1, first_choice_key=1))
        joined.step()
        assert opened(joined)[0] == [2]


class TestPriorities:
    """Classes, and what waiting makes up for."""

    def test_a_higher_class_is_admitted_first(self) -> None:
        joined = wire_with(Limits(step_budget_tokens=64, credits=1), num_rows=1)
        for key, priority in ((1, 0), (2, 0), (3, 1)):
            joined.core.submit(1, submission(key, [key], max_tokens=1, priority=priority))
        joined.run_until_idle()
        assert [seeds for seeds in opened(joined) if seeds] == [[3], [1], [2]]

    def test_a_request_that_waited_long_enough_comes_before_a_higher_class(self) -> None:
        limits = Limits(step_budget_tokens=64, credits=1, aging_s=10)
        joined = wire_with(limits, num_rows=1)
        joined.core.submit(1, submission(1, [1], max_tokens=1, priority=0), now_s=0)
        joined.core.submit(1, submission(2, [2], max_tokens=1, priority=1), now_s=9)
        joined.core.submit(1, submission(3, [3], max_tokens=1, priority=1), now_s=11)
        joined.run_until_idle()
        assert [seeds for seeds in opened(joined) if seeds] == [[2], [1], [3]]

    @pytest.mark.parametrize("priority", [-101, 101])
    def test_a_class_out_of_range_is_refused(self, priority: int) -> None:
        with pytest.raises(
            InvalidArgument, match=f"priority is {priority}; it must be -100 to 100"
        ):
            roomy().core.submit(1, submission(1, priority=priority))


class TestDeadlines:
    """They are of requests that wait."""

    def test_one_that_waits_past_its_time_fails(self) -> None:
        joined = wire_with(Limits(step_budget_tokens=64, credits=1), num_rows=1)
        joined.core.submit(1, submission(1, [1], max_tokens=9), now_s=0)
        joined.core.submit(1, submission(2, [2], remaining_s=5), now_s=1)
        joined.step()
        joined.core.tick(5.9)
        assert joined.core.live.find(1, 2) is not None
        joined.core.tick(6)
        joined.heard.take(joined.core)
        failure = joined.heard.finished[1, 2].failure
        assert failure is not None
        assert failure.reason == "DEADLINE_EXCEEDED"
        assert "while it waited for a row" in failure.message

    def test_one_that_runs_goes_on_and_one_that_was_preempted_is_told_so(self) -> None:
        joined = wire_with(Limits(step_budget_tokens=64, credits=1), num_pages=3)
        for key in (1, 2):
            joined.core.submit(1, submission(key, [key] * 4, max_tokens=9, remaining_s=5), now_s=0)
        joined.step()
        joined.core.tick(100)
        assert len(joined.core.live) == 2
        joined.step()  # the second is preempted
        joined.core.tick(100)
        joined.heard.take(joined.core)
        failure = joined.heard.finished[1, 2].failure
        assert failure is not None
        assert "while it waited again for a row" in failure.message

    def test_nothing_is_kept_of_requests_that_do_not_wait(self) -> None:
        """Each was kept, with its prompt, until its time was over."""
        queue = WaitingQueue(long_len=8)
        req = request(1)
        req.deadline_s = 1e9
        queue.add(req)
        assert queue.expired(2e9) == [req]
        queue.remove(req)
        assert queue.expired(2e9) == []
        assert not queue._with_deadline


def test_a_full_queue_says_when_to_come_again() -> None:
    joined = wire_with(Limits(step_budget_tokens=64, credits=1, max_waiting=2))
    for key in (1, 2):
        joined.core.submit(1, submission(key))
    with pytest.raises(ResourceExhausted, match="2 requests wait, and max_waiting is 2") as full:
        joined.core.submit(1, submission(3))
    assert (full.value.reason, full.value.retry_after_s) == ("QUEUE_FULL", 1)
    joined.send()
    joined.core.submit(1, submission(3))


def test_a_cancel_between_the_end_and_its_delivery_changes_nothing() -> None:
    """The session heard that it finished; the counters and its story said that it was cancelled."""
    joined = wire_with(Limits(step_budget_tokens=64, credits=1))
    joined.core.submit(1, submission(1, [1], max_tokens=1))
    joined.send()
    joined.deliver_plan()
    joined.execute()
    joined.core.result(joined.answers.popleft())  # type: ignore[arg-type] # a result
    joined.core.cancel(1, 1)
    joined.heard.take(joined.core)
    totals = joined.core.live.totals
    assert joined.heard.cause(1) is FinishCause.MAX_TOKENS
    assert (totals.finished, totals.cancelled) == (1, 0)
    assert report(joined, 1).story.end == "MAX_TOKENS"


@pytest.mark.parametrize(
    ("field", "text"), [("traceparent", "0" * 65), ("cache_salt", "ä" * 129), ("request_id", "")]
)
def test_labels_are_bounded(field: str, text: str) -> None:
    wanted = submission(1, **({field: text} if text else {}))
    if not text:
        wanted = submission(1)
        object.__setattr__(wanted, "request_id", "x" * 257)
    with pytest.raises(InvalidArgument, match=f"{field} has .*; at most"):
        roomy().core.submit(1, wanted)
