"""What Explain tells: why a request waited, what it matched and why no more, who took its row."""

from __future__ import annotations

from cachesvc.explain import summary_of
from cachesvc.inspect_pages import RequestReport, request_report
from cachesvc.request import ReqState
from cachesvc.story import MatchEnd, PreemptionCause, WaitCause
from servicekit.plan import Refusal
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
        assert (wait.cause, wait.lacking_pages) == (WaitCause.NO_PAGES, 1)
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
        assert "it waited: no runner was attached" in report(joined, 1).summary


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
        assert "Its row was gone with plan 2, 1 tokens sampled: 1 pages were lacking for " in (
            told.summary
        )
        assert told.summary.endswith("MAX_TOKENS.")


def test_a_summary_is_in_order_of_plans() -> None:
    joined = wire(num_pages=3, credits=1)
    submit(joined, 1, [1, 2, 3, 4], max_tokens=5)
    submit(joined, 2, [5, 6, 7, 8], max_tokens=5)
    joined.run_until_idle()
    told = report(joined, 2)
    summary = summary_of(told.story, joined.core.live.stories, told.waits)
    places = [summary.index(told) for told in ("Plan 1 gave", "with plan 2", "It ended")]
    assert places == sorted(places)


class TestLostRows:
    """A row that is gone with a refusal or a runner is told like one that the scheduler took."""

    def test_with_a_refused_plan(self) -> None:
        joined = wire(credits=1)
        for key in (1, 2):
            submit(joined, key, [key] * 3, max_tokens=8)
        joined.step()
        plan = joined.send()
        assert plan is not None
        joined.plans.clear()
        joined.core.refused(Refusal(plan.plan_id, "STORE", "a store", (0,), plan.plan_id - 1))
        joined.runner.books.last_plan_id = plan.plan_id - 1
        joined.run_until_idle()
        (taken,) = report(joined, 2).story.preemptions
        assert (taken.cause, taken.plan_id) == (PreemptionCause.PLAN_REFUSED, plan.plan_id)
        assert "Its row was gone with plan 2, 1 tokens sampled: a plan was refused" in (
            report(joined, 2).summary
        )

    def test_with_a_runner_that_it_waited_for(self) -> None:
        joined = wire(credits=1)
        submit(joined, 1, [1] * 3, max_tokens=8)
        joined.step()
        joined.step()
        joined.cut()
        submit(joined, 2, [2], max_tokens=1)
        joined.core.stream.boot_id = "a life that is over"
        joined.attach()
        joined.run_until_idle()
        (taken,) = report(joined, 1).story.preemptions
        assert taken.cause is PreemptionCause.MEMORY_LOST
        for key in (1, 2):
            assert WaitCause.NO_RUNNER in [wait.cause for wait in report(joined, key).waits]
        assert "the runner's memory was another" in report(joined, 1).summary

    def test_nobody_waits_for_a_runner_that_only_has_enough_to_do(self) -> None:
        joined = wire(num_rows=1, credits=1)
        for key in (1, 2):
            submit(joined, key, [key], max_tokens=3)
        joined.send()
        assert [wait.cause for wait in report(joined, 2).waits] == [WaitCause.NO_ROW]
