"""What pages and requests are now, and how it came to be: read only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cachesvc.core import Core
from cachesvc.explain import summary_of
from cachesvc.integrity import path_of
from cachesvc.ledger import PageChange, PageState
from cachesvc.manager import CacheManager
from cachesvc.prefix_node import LOC_BYTES, PrefixNode
from cachesvc.request import Req, ReqState
from cachesvc.story import Story, Wait, WaitCause
from servicekit.errors import InvalidArgument, NotFound, Reason


@dataclass(frozen=True)
class PageReport:
    """A page: what it is, who holds it, what happened to it."""

    state: PageState
    holders: list[str]  # request_id of each row that points into it
    cached_prefix_len: int  # where it ends in the sequences that share it; 0: not cached
    changes: list[PageChange]  # oldest first
    oldest_plan_id: int  # changes before it are forgotten


class RowPage(NamedTuple):
    """A page of a row."""

    page_id: int
    first_position: int
    state: PageState


@dataclass(frozen=True)
class RequestReport:
    """A request: its story, what it waited for, and all of it in sentences."""

    story: Story
    state: ReqState
    sampled_len: int
    waits: list[Wait]
    summary: str


def page_report(core: Core, page_id: int) -> PageReport:
    """Errors: InvalidArgument for a page that is none; Unavailable before the first runner."""
    manager = core.ready_scheduler().manager
    num_pages = manager.pool.num_pages
    if not 0 <= page_id < num_pages:
        raise InvalidArgument(
            Reason.PAGE_OUT_OF_RANGE,
            f"page_id is {page_id}; pages go from 0 to {num_pages - 1}",
            field="page_id",
        )
    node = _node_of(manager, page_id)
    holders = [
        req.submission.request_id
        for idx, req in enumerate(manager.rows.req)
        if req is not None and page_id in manager.first_locs(idx) // manager.page_size
    ]
    return PageReport(
        state=_state_of(manager, page_id, node),
        holders=holders,
        cached_prefix_len=0 if node is None else _prefix_len(manager, page_id, node),
        changes=manager.ledger.history(page_id),
        oldest_plan_id=manager.ledger.oldest_plan_id,
    )


def request_pages(core: Core, request_id: str) -> tuple[int | None, list[RowPage]]:
    """The row of a request and its pages, in order of position. Errors: NotFound."""
    req = core.live.of_story(_story(core, request_id))
    if req is None or req.table_idx is None:
        return None, []
    manager = core.ready_scheduler().manager
    shared = int(manager.rows.num_tree_pages[req.table_idx])
    page_ids = (manager.first_locs(req.table_idx) // manager.page_size).tolist()
    return req.table_idx, [
        RowPage(
            page_id,
            nth * manager.page_size,
            PageState.LOCKED if nth < shared else PageState.PRIVATE,
        )
        for nth, page_id in enumerate(page_ids)
    ]


def request_report(core: Core, request_id: str) -> RequestReport:
    """Errors: NotFound for a label that is not known, or not any more."""
    story = _story(core, request_id)
    req = core.live.of_story(story)
    stories = core.live.stories
    waits = stories.waits_of(story)
    if req is not None and req.first_choice is not None:
        waits += stories.held(story, req.first_choice.arrival, stories.now)
    if req is not None and req.state is ReqState.WAITING and not core.stream.attached:
        step, plan_id = stories.next_moment(core.stream.last_plan_id + 1)
        cause = WaitCause.NO_RUNNER
        waits.append(Wait(story.arrival, cause, plan_id, plan_id, None, 0, step, step))
    return RequestReport(
        story=story,
        state=ReqState.ENDED if req is None else req.state,
        sampled_len=story.sampled_len if req is None else _sampled_len(core, req),
        waits=waits,
        summary=summary_of(story, stories, waits),
    )


def _story(core: Core, request_id: str) -> Story:
    story = core.live.stories.find(request_id)
    if story is None:
        raise NotFound(
            Reason.REQUEST_NOT_FOUND,
            f"no request {request_id!r} is live, or ended lately",
            field="request_id",
        )
    return story


def _sampled_len(core: Core, req: Req) -> int:
    if req.table_idx is None:
        return len(req.output_ids)
    rows = core.ready_scheduler().manager.rows
    return int(rows.known_len[req.table_idx]) - len(req.prompt_ids)


def _node_of(manager: CacheManager, page_id: int) -> PrefixNode | None:
    """O(nodes)."""
    wanted = (page_id * manager.page_size).to_bytes(LOC_BYTES, "little")
    for node in manager.tree.nodes():
        at = node.locs.find(wanted)
        while at > 0 and at % LOC_BYTES:  # inside of two others
            at = node.locs.find(wanted, at + 1)
        if at >= 0:
            return node
    return None


def _prefix_len(manager: CacheManager, page_id: int, node: PrefixNode) -> int:
    before = sum(above.num_pages for above in path_of(node.parent))
    locs = np.frombuffer(node.locs, dtype=np.int32)
    nth = int(np.flatnonzero(locs == page_id * manager.page_size)[0])
    return (before + nth + 1) * manager.page_size


def _state_of(manager: CacheManager, page_id: int, node: PrefixNode | None) -> PageState:
    if page_id in manager.quarantined:
        return PageState.QUARANTINED
    if node is not None:
        return PageState.LOCKED if node.ref_count else PageState.EVICTABLE
    return PageState.FREE if manager.pool.is_free[page_id] else PageState.PRIVATE
