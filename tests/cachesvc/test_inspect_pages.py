"""What pages and requests are now, and how it came to be."""

from __future__ import annotations

import pytest

from cachesvc.core import Core
from cachesvc.inspect_pages import page_report, request_pages, request_report
from cachesvc.ledger import ChangeReason, PageState
from cachesvc.limits import Limits
from cachesvc.request import ReqState
from cachesvc.story import MAX_ENDED, MAX_REPEATS
from servicekit.errors import InvalidArgument, NotFound, Unavailable
from tests.cachesvc.builders import submission
from tests.cachesvc.test_explain import finish, label, report, submit
from tests.cachesvc.wire import wire


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
        assert (told.state, told.story.end) == (ReqState.ENDED, end)
        assert told.story.ended is not None
        assert told.story.ended.plan_id == 2
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
        for nth in range(MAX_REPEATS + 5):
            joined.send()
            joined.cut()
            joined.runner.last_manager_id = f"manager {nth}"
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
        with pytest.raises(Unavailable):
            page_report(Core(Limits(step_budget_tokens=1, credits=1)), 0)


def test_a_label_stays_known_while_an_older_request_with_it_lives() -> None:
    joined = wire()
    submit(joined, 1, [1, 2, 3], max_tokens=9)
    joined.core.submit(2, submission(1, [1]))
    joined.core.cancel(2, 1)
    for key in range(2, MAX_ENDED + 2):
        submit(joined, key, [1])
        joined.core.cancel(1, key)
    assert report(joined, 1).story.prompt_len == 3
