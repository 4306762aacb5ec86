"""Reports of pages and requests as messages."""

from __future__ import annotations

from pagewire.v1 import cache_pb2 as pb

from cachesvc.core import Core
from cachesvc.inspect_pages import page_report, request_pages, request_report
from cachesvc.request import ReqState
from cachesvc.story import Admission, Preemption, Stories, Wait

_STATES = {
    ReqState.WAITING: pb.REQUEST_STATE_WAITING,
    ReqState.RUNNING: pb.REQUEST_STATE_RUNNING,
    ReqState.ENDED: pb.REQUEST_STATE_ENDED,
}


def page_history(core: Core, page_id: int) -> pb.PageHistoryResponse:
    """Errors: InvalidArgument, Unavailable."""
    report = page_report(core, page_id)
    return pb.PageHistoryResponse(
        state=pb.PageState.ValueType(report.state),
        holders=report.holders,
        cached_prefix_len=report.cached_prefix_len,
        changes=[
            pb.PageChange(
                plan_id=change.plan_id,
                reason=pb.PageChangeReason.ValueType(change.reason),
                state=pb.PageState.ValueType(change.state),
                request_id=core.live.stories.label_of(change.arrival),
            )
            for change in report.changes
        ],
        oldest_plan_id=report.oldest_plan_id,
    )


def pages_of_request(core: Core, request_id: str) -> pb.RequestPagesResponse:
    """Errors: NotFound."""
    table_idx, pages = request_pages(core, request_id)
    return pb.RequestPagesResponse(
        table_idx=table_idx,
        pages=[
            pb.RequestPage(
                page_id=page.page_id,
                first_position=page.first_position,
                state=pb.PageState.ValueType(page.state),
            )
            for page in pages
        ],
    )


def explanation(core: Core, request_id: str) -> pb.ExplainResponse:
    """Errors: NotFound."""
    report, stories = request_report(core, request_id), core.live.stories
    story = report.story
    return pb.ExplainResponse(
        request_id=request_id,
        state=_STATES[report.state],
        summary=report.summary,
        priority=story.priority,
        prompt_tokens=story.prompt_len,
        sampled_tokens=report.sampled_len,
        submitted_plan_id=story.submitted.plan_id,
        ended_plan_id=0 if story.ended is None else story.ended.plan_id,
        end=story.end,
        waits=[_wait(wait, stories) for wait in report.waits],
        admissions=[_admission(given, stories) for given in story.admissions],
        preemptions=[_preemption(taken, stories) for taken in story.preemptions],
        traceparent=story.traceparent,
    )


def _wait(wait: Wait, stories: Stories) -> pb.Wait:
    return pb.Wait(
        cause=pb.WaitCause.ValueType(wait.cause),
        first_plan_id=wait.first_plan_id,
        last_plan_id=wait.last_plan_id,
        behind_request_id=stories.label_of(wait.behind),
        lacking_pages=wait.lacking_pages,
    )


def _admission(given: Admission, stories: Stories) -> pb.Admission:
    miss = given.miss
    return pb.Admission(
        plan_id=given.plan_id,
        table_idx=given.table_idx,
        cached_tokens=given.cached_len,
        match_end=pb.MatchEnd.ValueType(miss.end),
        end_position=miss.position,
        end_token_id=miss.token_id,
        evicted_plan_id=miss.evicted_plan_id,
        evicted_for_request_id=stories.label_of(miss.evicted_for),
    )


def _preemption(taken: Preemption, stories: Stories) -> pb.Preemption:
    return pb.Preemption(
        plan_id=taken.plan_id,
        cause=pb.PreemptionCause.ValueType(taken.cause),
        for_request_id=stories.label_of(taken.for_arrival),
        lacking_pages=taken.lacking_pages,
        sampled_tokens=taken.sampled_len,
    )
