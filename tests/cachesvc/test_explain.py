"""What Explain tells: why a request waited, what it matched and why no more, who took its row."""

from __future__ import annotations

import pytest

from cachesvc.explain import summary_of
from cachesvc.inspect_pages import RequestReport, page_report, request_pages, request_report
from cachesvc.ledger import ChangeReason, PageState
from cachesvc.request import ReqState
from cachesvc.story import MAX_ENDED, MAX_REPEATS, MatchEnd, WaitCause
from servicekit.errors import InvalidArgument, NotFound, Unavailable
from tests.cachesvc.builders import submission
from tests.cachesvc.wire import Wire, wire


def submit(joined: Wire, key: int, prompt: list[int], **changes: object) -> None:
    joined.core.submit(1, submission(key, prompt, **changes))


def finish(
    joined: Wire, key: int, prompt: list[int], max_tokens: int = 1, **changes: object
) -> None:
    """A request that comes and goes by itself."""
    submit(joined, key, prompt, max_tokens=max_tokens, **changes)
    joined.run_until_idle()


def report(joined: Wire, key: int) -> RequestReport:
    return request_report(joined.core, f"request-{key}")


def label(joined: Wire, arrival: int | None) -> str:
    return joined.core.live.stories.label_of(arrival)


class TestWaiting:
    """Every cause, in plans, with whom it waited behind."""

    def test_for_a_row(self) -> None:
        joined = wire(num_rows=1, credits=1)
        submit(joined, 1, [1], max_tokens=3)
        submit(joined, 2, [2], max_tokens=1)
        joined.run_until_idle()
        (wait,) = report(joined, 2).waits
        assert (wait.cause, wait.first_plan_id, wait.last_plan_id) == (WaitCause.NO_ROW, 1, 3)
        assert "Plans 1 to 3 went without it: every row was taken." in report(joined, 2).summary

    def test_for_pages_with_how_many_it_lacked(self) -> None:
        joined = wire(num_pages=3, credits=1)
        submit(joined, 1, [1] * 5, max_tokens=2)
        submit(joined, 2, [2] * 5, max_tokens=1)
        joined.run_until_idle()
        (wait,) = report(joined, 2).waits
        assert (wait.cause, wait.lacking_pages) == (WaitCause.NO_PAGES, 2)
        assert (wait.first_plan_id, wait.last_plan_id) == (1, 2)

    def test_for_the_budget_of_a_step(self) -> None:
        joined = wire(budget=4, credits=1)
        submit(joined, 1, [1, 2, 3, 4], max_tokens=1)
        submit(joined, 2, [5], max_tokens=1)
        joined.run_until_idle()
        (wait,) = report(joined, 2).waits
        assert (wait.cause, wait.first_plan_id, wait.last_plan_id) == (WaitCause.NO_BUDGET, 1, 1)

    def test_while_others_are_preempted(self) -> None:
        joined = wire(num_rows=4, num_pages=5, credits=1)
        for key in (1, 2, 3):
            submit(joined, key, [key] * 4, max_tokens=5)
        joined.step()
        submit(joined, 4, [7], max_tokens=1)
        joined.step()
        waits = [wait for wait in report(joined, 4).waits if wait.first_plan_id == 2]
        assert [(wait.cause, label(joined, wait.behind)) for wait in waits] == [
            (WaitCause.BEHIND, "request-3")
        ]
        (preempted,) = report(joined, 3).waits
        assert preempted.cause is WaitCause.PREEMPTING

    def test_for_a_long_prompt_before_it(self) -> None:
        joined = wire(budget=4, credits=1)
        submit(joined, 1, [1] * 12, max_tokens=1)
        submit(joined, 2, [2] * 8, max_tokens=1)
        joined.run_until_idle()
        wait = report(joined, 2).waits[0]
        assert (wait.cause, wait.first_plan_id) == (WaitCause.LONG_PREFILLS, 1)

    def test_for_the_first_choice_of_its_prompt(self) -> None:
        joined = wire(credits=1)
        submit(joined, 1, [1] * 5, max_tokens=2)
        submit(joined, 2, [1] * 5, max_tokens=2, choice=1, first_choice_key=1)
        joined.run_until_idle()
        (wait,) = report(joined, 2).waits
        assert (wait.cause, wait.last_plan_id) == (WaitCause.FIRST_CHOICE, 1)
        assert label(joined, wait.behind) == "request-1"
        assert "the first choice of its prompt, 'request-1', was not sent yet" in (
            report(joined, 2).summary
        )

    def test_behind_another_one(self) -> None:
        joined = wire(num_rows=1, credits=1)
        for key in (1, 2, 3):
            submit(joined, key, [key], max_tokens=1)
        joined.step()
        (wait,) = report(joined, 3).waits
        assert (wait.cause, label(joined, wait.behind)) == (WaitCause.BEHIND, "request-2")
        assert "it waited behind 'request-2'" in report(joined, 3).summary

    def test_for_a_runner(self) -> None:
        joined = wire()
        joined.cut()
        submit(joined, 1, [1])
        assert [wait.cause for wait in report(joined, 1).waits] == [WaitCause.NO_RUNNER]
        assert report(joined, 1).state is ReqState.WAITING
        assert "no runner is attached" in report(joined, 1).summary


class TestMatching:
    """Where the match ended, and why: pages of four tokens."""

    def test_all_but_the_page_with_the_last_token(self) -> None:
        joined = wire()
        finish(joined, 1, [1] * 9)
        finish(joined, 2, [1] * 8)
        (given,) = report(joined, 2).story.admissions
        assert (given.cached_len, given.miss.end, given.miss.position) == (4, MatchEnd.WHOLE, 4)
        assert "with 4 tokens cached, all that can be" in report(joined, 2).summary

    def test_the_first_token_that_differs(self) -> None:
        joined = wire()
        finish(joined, 1, [1] * 9)
        finish(joined, 2, [1, 1, 1, 1, 1, 1, 5, 1, 1])
        (given,) = report(joined, 2).story.admissions
        assert given.cached_len == 4
        assert given.miss[:3] == (MatchEnd.DIFFERS, 6, 5)
        assert "token 5 at position 6 differs from what is cached" in report(joined, 2).summary

    def test_what_was_never_cached(self) -> None:
        joined = wire()
        finish(joined, 1, [1] * 5)
        finish(joined, 2, [2] * 5)
        (given,) = report(joined, 2).story.admissions
        assert given.miss[:3] == (MatchEnd.NEVER_CACHED, 0, 2)

    def test_another_salt_never_cached_it(self) -> None:
        joined = wire()
        finish(joined, 1, [1] * 5, cache_salt="a")
        finish(joined, 2, [1] * 5, cache_salt="b")
        finish(joined, 3, [1] * 5, cache_salt="a")
        assert report(joined, 2).story.admissions[0].miss.end is MatchEnd.NEVER_CACHED
        assert report(joined, 3).story.admissions[0].cached_len == 4

    def test_what_was_evicted_when_and_for_whom(self) -> None:
        joined = wire(num_pages=3)
        finish(joined, 1, [1] * 9)  # two pages stay, its third is free
        finish(joined, 2, [2] * 5)  # takes the free one and evicts the second of them
        evicting = report(joined, 2).story.admissions[0].plan_id
        finish(joined, 3, [1] * 9)
        (given,) = report(joined, 3).story.admissions
        assert given.cached_len == 4
        assert given.miss[:3] == (MatchEnd.EVICTED, 4, 1)
        assert given.miss.evicted_plan_id == evicting
        assert label(joined, given.miss.evicted_for) == "request-2"
        told = f"token 1 at position 4 was evicted in plan {evicting} for 'request-2'"
        assert told in report(joined, 3).summary

    def test_what_an_operator_flushed_was_evicted_for_nobody(self) -> None:
        joined = wire()
        finish(joined, 1, [1] * 5)
        joined.core.scheduler.manager.flush()
        finish(joined, 2, [1] * 5)
        (given,) = report(joined, 2).story.admissions
        assert given.miss.end is MatchEnd.EVICTED
        assert label(joined, given.miss.evicted_for) == ""

    def test_an_eviction_behind_a_page_that_holds_other_tokens_since_is_not_meant(self) -> None:
        """The page that stayed was evicted too and filled anew: what followed it then is not what
        would follow now.
        """
        joined = wire(num_pages=3)
        finish(joined, 1, [1] * 8 + [3])
        joined.core.scheduler.manager.flush()
        finish(joined, 2, [4] * 5)
        finish(joined, 3, [4] * 4 + [1] * 5)
        assert report(joined, 3).story.admissions[0].miss.end is MatchEnd.NEVER_CACHED


class TestPreemption:
    """When a row was taken, for whom, and what was found again after it."""

    def test_it_is_told_with_the_pages_that_were_lacking(self) -> None:
        joined = wire(num_pages=3, credits=1)
        submit(joined, 1, [1, 2, 3, 4], max_tokens=5)
        submit(joined, 2, [5, 6, 7, 8], max_tokens=5)
        joined.run_until_idle()
        told = report(joined, 2)
        (taken,) = told.story.preemptions
        assert (taken.plan_id, taken.lacking_pages, taken.sampled_len) == (2, 1, 1)
        assert label(joined, taken.for_arrival) == "request-1"
        first, second = told.story.admissions
        assert (first.plan_id, first.cached_len, second.cached_len) == (1, 0, 4)
        assert "Plan 2 took its row, after 1 sampled tokens, for 'request-1'" in told.summary
        assert told.summary.endswith("MAX_TOKENS.")


class TestRequests:
    def test_a_live_one_and_its_pages(self) -> None:
        joined = wire(credits=1)
        submit(joined, 1, [1] * 6, max_tokens=8)
        joined.step()
        joined.step()
        told = report(joined, 1)
        assert (told.state, told.sampled_len, told.story.end) == (ReqState.RUNNING, 2, "")
        table_idx, pages = request_pages(joined.core, "request-1")
        assert table_idx == 0
        assert pages == [(0, 0, PageState.LOCKED), (1, 4, PageState.PRIVATE)]

    @pytest.mark.parametrize(("leave", "end"), [("stop", "STOPPED"), ("cancel", "CANCELLED")])
    def test_one_that_left(self, leave: str, end: str) -> None:
        joined = wire(credits=1)
        submit(joined, 1, [1])
        joined.step()
        getattr(joined.core, leave)(1, 1)
        told = report(joined, 1)
        assert (told.state, told.story.end, told.story.ended_plan_id) == (ReqState.ENDED, end, 2)
        assert told.sampled_len == 1
        assert request_pages(joined.core, "request-1") == (None, [])

    def test_of_two_with_one_label_the_latest_is_meant(self) -> None:
        joined = wire()
        finish(joined, 1, [1])
        joined.core.submit(2, submission(1, [1, 2]))
        assert report(joined, 1).story.prompt_len == 2

    def test_an_unknown_label_is_said_to_be_none(self) -> None:
        joined = wire()
        for ask in (request_report, request_pages):
            with pytest.raises(NotFound, match="no request 'nobody' is live, or ended lately"):
                ask(joined.core, "nobody")

    def test_the_oldest_that_ended_are_forgotten(self) -> None:
        joined = wire()
        submit(joined, 1, [1])
        joined.core.cancel(1, 1)
        for key in range(2, MAX_ENDED + 2):
            submit(joined, key, [1])
            joined.core.cancel(1, key)
        with pytest.raises(NotFound):
            report(joined, 1)
        assert report(joined, 2).story.end == "CANCELLED"

    def test_of_many_preemptions_the_first_admission_and_the_latest_are_kept(self) -> None:
        joined = wire()
        submit(joined, 1, [1])
        for _ in range(MAX_REPEATS + 5):
            joined.send()
            joined.cut()
            joined.core.stream.boot_id = "a life that is over"
            joined.attach()
        admissions = report(joined, 1).story.admissions
        assert len(admissions) == MAX_REPEATS
        assert admissions[0].plan_id == 1


class TestPages:
    """PageHistory: from free to evicted, with reasons and requests."""

    def test_the_life_of_a_page(self) -> None:
        joined = wire(num_pages=2)
        finish(joined, 1, [1] * 5)
        finish(joined, 2, [1] * 5)
        finish(joined, 3, [2] * 5)
        history = [
            (change.reason, change.state, label(joined, change.arrival))
            for change in page_report(joined.core, 0).changes
        ]
        assert history == [
            (ChangeReason.ALLOCATED, PageState.PRIVATE, "request-1"),
            (ChangeReason.SHARED, PageState.LOCKED, "request-1"),
            (ChangeReason.FINISHED, PageState.EVICTABLE, "request-1"),
            (ChangeReason.HIT, PageState.LOCKED, "request-2"),
            (ChangeReason.FINISHED, PageState.EVICTABLE, "request-2"),
            (ChangeReason.EVICTED, PageState.FREE, "request-3"),
            (ChangeReason.ALLOCATED, PageState.PRIVATE, "request-3"),
            (ChangeReason.SHARED, PageState.LOCKED, "request-3"),
            (ChangeReason.FINISHED, PageState.EVICTABLE, "request-3"),
        ]

    def test_duplicates_and_remaps(self) -> None:
        joined = wire(credits=1)
        for key in (1, 2):
            submit(joined, key, [1] * 5, max_tokens=3)
        joined.step()
        joined.step()
        shared, duplicate = page_report(joined.core, 0), page_report(joined.core, 2)
        assert (shared.state, shared.holders) == (PageState.LOCKED, ["request-1", "request-2"])
        assert shared.cached_prefix_len == 4
        assert shared.changes[-1][1:3] == (ChangeReason.REMAPPED, PageState.LOCKED)
        assert duplicate.changes[-1][1:3] == (ChangeReason.DUPLICATE_FREED, PageState.FREE)

    def test_what_a_new_life_and_a_refusal_do(self) -> None:
        joined = wire(credits=1)
        submit(joined, 1, [1] * 5, max_tokens=9)
        joined.step()
        joined.step()
        joined.core.stream.boot_id = "a life that is over"
        joined.cut()
        joined.attach()
        reasons = [change.reason for change in page_report(joined.core, 0).changes]
        assert reasons[-1] is ChangeReason.VOIDED

    @pytest.mark.parametrize("page_id", [-1, 8, 1 << 30])
    def test_a_page_out_of_range_is_refused_with_the_range(self, page_id: int) -> None:
        joined = wire()
        with pytest.raises(InvalidArgument, match=f"page_id is {page_id}; pages go from 0 to 7"):
            page_report(joined.core, page_id)

    def test_there_are_no_pages_before_the_first_runner(self) -> None:
        from cachesvc.core import Core
        from cachesvc.limits import Limits

        with pytest.raises(Unavailable):
            page_report(Core(Limits(step_budget_tokens=1, credits=1)), 0)


def test_a_summary_is_in_order_of_plans() -> None:
    joined = wire(num_pages=3, credits=1)
    submit(joined, 1, [1, 2, 3, 4], max_tokens=5)
    submit(joined, 2, [5, 6, 7, 8], max_tokens=5)
    joined.run_until_idle()
    told = report(joined, 2)
    summary = summary_of(told.story, joined.core.live.stories, told.waits)
    places = [summary.index(f"Plan {plan_id} ") for plan_id in (1, 2)]
    assert places == sorted(places)
