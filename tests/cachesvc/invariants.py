"""What holds of a `World` between any two moves, and after a plan was made."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from cachesvc.inspect_pages import page_report
from cachesvc.integrity import check_integrity, path_of
from cachesvc.ledger import PageState
from cachesvc.prefix_node import SaltedRoot
from cachesvc.request import FinishCause, Req, ReqState
from cachesvc.rows import RowTable
from servicekit.errors import Reason
from servicekit.plan import Plan
from tests.cachesvc.builders import locs_of
from tests.cachesvc.fake_runner import digest_of

if TYPE_CHECKING:
    from cachesvc.manager import CacheManager
    from tests.cachesvc.fake_runner import FakeRunner
    from tests.cachesvc.world import World


def check(world: World) -> None:
    every_token_is_the_undisturbed_one(world)
    requests_are_in_the_order_of_their_ranks(world)
    both_ends_hold_the_same_table_when_nothing_is_under_way(world)
    cached_pages_hold_their_prefix(world)
    every_cached_page_is_known_to_the_journal(world)
    rows_stay_within_their_salt(world)
    check_integrity(world.manager)
    the_ledger_knows_where_each_page_is(world)
    assert len(world.core.live) == len(world.live)
    deaths_are_held_against_those_that_took_part(world)


def every_token_is_the_undisturbed_one(world: World) -> None:
    heard = world.wire.heard
    for request_key, tokens in heard.tokens.items():
        truth = world.truths[world.wanted[request_key].draw]
        assert tokens == truth.answer[: len(tokens)]
        if request_key in world.left:
            assert len(tokens) == world.left[request_key], "a token after stop or cancel"
    for request_key, ended in heard.finished.items():
        truth = world.truths[world.wanted[request_key].draw]
        assert request_key not in world.left
        assert (ended.cause is FinishCause.FAILED) == (request_key in world.failed), ended
        if ended.cause is FinishCause.FAILED:
            continue
        tokens = heard.tokens[request_key]
        is_smaller = world.least_tokens < world.largest.pool_tokens
        if ended.cause is FinishCause.CACHE_FULL and is_smaller:
            resume_len = len(world.wanted[request_key].submission.resume_token_ids)
            assert truth.prompt_len + resume_len + len(tokens) > world.least_tokens
        else:
            assert (tokens, ended.cause) == (truth.answer, truth.cause)
    for request_key, cached_len in heard.cached_len.items():
        wanted = world.wanted[request_key].submission
        assert cached_len <= len(wanted.prompt_ids)
        assert cached_len < len(wanted.prompt_ids) + len(wanted.resume_token_ids)


def requests_are_in_the_order_of_their_ranks(world: World) -> None:
    """By the time of arrival, earlier the higher the priority; that of a preempted one stays."""
    for state in (ReqState.RUNNING, ReqState.WAITING):
        ranks = [world.wanted[req.session_id, req.key].rank for req in world.reqs(state)]
        assert ranks == sorted(ranks), state


def deaths_are_held_against_those_that_took_part(world: World) -> None:
    for request_key in world.live:
        req = world.core.live.find(*request_key)
        assert req is not None
        assert req.runner_deaths == world.deaths.counts[request_key], request_key
    for request_key, ended in world.wire.heard.finished.items():
        if ended.failure is not None and ended.failure.reason is Reason.RUNNER_DIED_TWICE:
            draw = world.wanted[request_key].draw
            by_chance = request_key in world.deaths.by_chance
            assert draw in world.wire.runner.dies_of or by_chance, "it killed no runner"


def both_ends_hold_the_same_table_when_nothing_is_under_way(world: World) -> None:
    wire, manager = world.wire, world.manager
    if not world.is_attached or world.reset_due or world.num_under_way:
        return
    if wire.plans or wire.answers or not wire.runner.idle:
        return
    for idx, row in wire.runner.memory.rows.items():
        if manager.rows.live[idx]:
            assert list(row.table.values()) == locs_of(manager, idx)
            assert row.length == manager.rows.cached_len[idx]


def cached_pages_hold_their_prefix(world: World) -> None:
    """Every page of the tree whose filling plan was executed has the K and V of its ids, after
    those before it.
    """
    runner, stream = world.wire.runner, world.core.stream
    if runner.boot_id == stream.boot_id and runner.last_manager_id == stream.manager_id:
        pages_hold_their_prefix(world.manager, runner)


def pages_hold_their_prefix(manager: CacheManager, runner: FakeRunner) -> None:
    page_size, kv = manager.page_size, runner.memory.kv
    for node in manager.tree.nodes():
        if not node.locs:
            continue
        before = b"".join(above.ids for above in path_of(node.parent))
        ids = np.frombuffer(before + node.ids, dtype=np.int32).tolist()
        at = len(before) // 4
        for first_loc in np.frombuffer(node.locs, dtype=np.int32).tolist():
            if manager.filled_by[first_loc // page_size] <= runner.last_executed:
                for offset in range(page_size):
                    here = at + offset
                    assert kv[first_loc + offset] == (ids[here], digest_of(ids[:here]))
            at += page_size


def every_cached_page_is_known_to_the_journal(world: World) -> None:
    manager = world.manager
    for node in manager.tree.nodes():
        page_ids = np.frombuffer(node.locs, dtype=np.int32) // manager.page_size
        assert manager.known.rewrite_due or manager.known.has_serials(page_ids)


def rows_stay_within_their_salt(world: World) -> None:
    for idx, tail in enumerate(world.manager.rows.tail):
        req = world.manager.rows.req[idx]
        if req is not None:
            root = path_of(tail)[0]
            assert isinstance(root, SaltedRoot)
            assert root.salt == req.submission.cache_salt or not world.manager.rows.live[idx]


def the_ledger_knows_where_each_page_is(world: World) -> None:
    """What became of a page last is where it is; so the equation can be told from the ledger."""
    manager = world.manager
    assert manager.ledger.oldest_plan_id == 0, "it forgot nothing"
    states = manager.ledger.states
    counts = Counter(states.tolist())
    assert counts[PageState.FREE] == manager.pool.free_count
    assert counts[PageState.EVICTABLE] == manager.tree.evictable_count
    assert counts[PageState.LOCKED] == manager.tree.locked_count
    assert counts[PageState.PRIVATE] == manager.private_count
    assert counts[PageState.QUARANTINED] == len(manager.quarantined)
    assert (manager.pool.is_free == (states == PageState.FREE)).all()
    for node in manager.tree.nodes():
        state = PageState.LOCKED if node.ref_count else PageState.EVICTABLE
        assert (
            states[np.frombuffer(node.locs, dtype=np.int32) // manager.page_size] == state
        ).all()


def pages_are_reported_as_they_are(world: World) -> None:
    """Asked for page by page, with nothing running."""
    manager = world.manager
    for page_id in range(manager.pool.num_pages):
        report = page_report(world.core, page_id)
        assert report.holders == []
        if report.changes:
            assert report.changes[-1].state == report.state
        assert (report.cached_prefix_len > 0) == (report.state is PageState.EVICTABLE)


def tree_of(world: World) -> list[tuple[bytes, bytes, int, int]]:
    """All that the tree says of each node."""
    nodes = world.manager.tree.nodes()
    return [(node.ids, node.locs, node.ref_count, node.last_used) for node in nodes]


# After a plan


def last_in_rank_goes_first(running: list[Req]) -> None:
    """Of those that ran before the plan, in order of rank: no one is preempted while another of
    later rank runs on, and the first one never is unless nobody else ran.
    """
    preempted = [req.state is ReqState.WAITING for req in running]
    went_on = [nth for nth, req in enumerate(running) if req.state is ReqState.RUNNING]
    assert not any(preempted[: went_on[-1]] if went_on else preempted[:1])


def first_in_rank_comes_first(world: World, running: list[Req]) -> None:
    """Nobody got a row before a request of lower rank that waits on, unless that one waits for
    something of its own.
    """
    got_a_row = [req.rank for req in world.reqs(ReqState.RUNNING) if req not in running]
    for req in world.reqs(ReqState.WAITING):
        waits_for_its_own = req.first_choice is not None or req.known_len > world.limits.long_len
        if got_a_row and not waits_for_its_own:
            assert max(got_a_row) < req.rank


def who_a_runner_may_have_died_of_is_tried_alone(world: World, running: list[Req]) -> None:
    """Beside those that have gained a token in their rows; and nobody joins it."""
    rows = world.manager.rows
    now = world.reqs(ReqState.RUNNING)
    suspects = [req for req in now if req.runner_deaths]
    if suspects:
        (tried,) = suspects
        joined = [req for req in now if req not in running]
        assert joined in ([], [tried])
        untried = [req for req in now if req is not tried and not gained_a_token(rows, req)]
        assert not untried


def gained_a_token(rows: RowTable, req: Req) -> bool:
    return bool(rows.known_len[req.table_idx] > rows.opened_len[req.table_idx])


def choices_share_the_prompt(world: World, running: list[Req]) -> None:
    """A further choice gets a row once the first has one, and begins with all full pages of the
    prompt but for a token, unless the first lost its row meanwhile.
    """
    page_size = world.description.page_size
    for req in world.reqs(ReqState.RUNNING):
        first_key = req.submission.first_choice_key
        first = None if first_key is None else world.core.live.find(req.session_id, first_key)
        if first is None or req in running or len(req.story.admissions) > 1:
            continue
        assert first.story.admissions
        if len(first.story.admissions) == 1 and first.state is ReqState.RUNNING:
            assert first in running
            pages = (len(req.prompt_ids) - 1) // page_size
            assert req.story.admissions[0].cached_len >= pages * page_size


def pages_are_written_whole(world: World, plan: Plan) -> None:
    """First locs are multiples of page_size, and locs run on inside a page."""
    page_size = world.description.page_size
    locs = plan.write_locs.reshape(-1, page_size)
    assert (locs[:, 0] % page_size == 0).all()
    assert (locs == locs[:, :1] + np.arange(page_size)).all()
    assert (plan.step_extend_lens >= 1).all(), "something is computed of every row of a step"
