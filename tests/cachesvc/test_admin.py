"""The admin RPCs and what a Session says of waiting, over the real protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from pagewire.v1 import cache_pb2 as pb

from cachesvc.ledger import ChangeReason, PageState
from cachesvc.request import ReqState
from cachesvc.story import MatchEnd, WaitCause
from servicekit.status import error_of
from tests.cachesvc.chain import Chain, chain_of
from tests.cachesvc.gateway_client import Gateway

PREFIX = (1, 2, 3, 4, 5)


@pytest.fixture
async def chain() -> AsyncIterator[Chain]:
    async with chain_of() as chain:
        yield chain


@pytest.fixture
async def gateway(chain: Chain) -> Gateway:
    return await chain.gateway()


async def finish(gateway: Gateway, key: int, prompt: tuple[int, ...] = PREFIX, **fields: object):
    await gateway.submit(key, prompt, max_tokens=2, **fields)
    await gateway.until_finished(key)


class TestPageHistory:
    async def test_it_tells_what_a_page_is_and_was(self, chain: Chain, gateway: Gateway) -> None:
        await finish(gateway, 1)
        await chain.until(lambda stats: stats.evictable_pages == 1)
        page = await chain.stub.PageHistory(pb.PageHistoryRequest(page_id=0))
        assert (page.state, list(page.holders)) == (pb.PAGE_STATE_EVICTABLE, [])
        assert page.cached_prefix_len == 4
        assert [(change.reason, change.request_id) for change in page.changes] == [
            (pb.PAGE_CHANGE_REASON_ALLOCATED, "request-1"),
            (pb.PAGE_CHANGE_REASON_SHARED, "request-1"),
            (pb.PAGE_CHANGE_REASON_FINISHED, "request-1"),
        ]
        assert page.oldest_plan_id == 0

    @pytest.mark.parametrize("page_id", [-1, 16])
    async def test_a_page_out_of_range_is_an_invalid_argument(
        self, chain: Chain, gateway: Gateway, page_id: int
    ) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await chain.stub.PageHistory(pb.PageHistoryRequest(page_id=page_id))
        error = error_of(failure.value)
        assert (error.code_name, error.reason) == ("INVALID_ARGUMENT", "PAGE_OUT_OF_RANGE")
        assert error.message == f"page_id is {page_id}; pages go from 0 to 15"
        await finish(gateway, 1)


class TestRequests:
    async def test_pages_and_explanation_of_a_live_request(
        self, chain: Chain, gateway: Gateway
    ) -> None:
        await finish(gateway, 1)
        chain.runner.gate.clear()
        trace = f"00-{'a' * 32}-{'b' * 16}-01"
        await gateway.submit(2, PREFIX, priority=3, traceparent=trace)
        await gateway.until(lambda _: 2 in gateway.cached_tokens)
        pages = await chain.stub.RequestPages(pb.RequestPagesRequest(request_id="request-2"))
        assert pages.table_idx == 0
        assert [(page.first_position, page.state) for page in pages.pages][:2] == [
            (0, pb.PAGE_STATE_LOCKED),
            (4, pb.PAGE_STATE_PRIVATE),
        ]
        told = await chain.stub.Explain(pb.ExplainRequest(request_id="request-2"))
        assert (told.state, told.priority, told.traceparent) == (
            pb.REQUEST_STATE_RUNNING,
            3,
            trace,
        )
        (given,) = told.admissions
        assert (given.cached_tokens, given.match_end) == (4, pb.MATCH_END_WHOLE)
        assert "with 4 tokens cached, all that can be." in told.summary
        chain.runner.gate.set()
        (opened,) = [
            row for plan in chain.runner.plans for row in plan.open_rows if row.traceparent
        ]
        assert opened.traceparent == trace

    @pytest.mark.parametrize("rpc", ["RequestPages", "Explain"])
    async def test_an_unknown_request_is_not_found(
        self, chain: Chain, gateway: Gateway, rpc: str
    ) -> None:
        request = getattr(pb, f"{rpc}Request")(request_id="nobody")
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await getattr(chain.stub, rpc)(request)
        error = error_of(failure.value)
        assert (error.code_name, error.reason) == ("NOT_FOUND", "REQUEST_NOT_FOUND")


class TestOperators:
    async def test_a_flush_frees_what_nobody_holds(self, chain: Chain, gateway: Gateway) -> None:
        await finish(gateway, 1)
        await chain.until(lambda stats: stats.evictable_pages == 1)
        assert (await chain.stub.FlushCache(pb.FlushCacheRequest())).evicted_pages == 1
        stats = await chain.stats()
        assert (stats.free_pages, stats.evicted_pages_total) == (16, 1)

    async def test_a_check_finds_nothing_when_all_is_well(
        self, chain: Chain, gateway: Gateway
    ) -> None:
        await finish(gateway, 1)
        found = await chain.stub.CheckIntegrity(pb.CheckIntegrityRequest())
        assert list(found.violations) == []

    async def test_a_check_names_and_heals_what_is_wrong(
        self, chain: Chain, gateway: Gateway
    ) -> None:
        await finish(gateway, 1)
        await chain.until(lambda stats: stats.evictable_pages == 1)
        scheduler = chain.service.core.scheduler
        assert scheduler is not None
        scheduler.manager.tree.evictable_count += 1
        found = await chain.stub.CheckIntegrity(pb.CheckIntegrityRequest())
        assert any("counters say evictable 2" in told for told in found.violations)
        again = await chain.stub.CheckIntegrity(pb.CheckIntegrityRequest())
        assert list(again.violations) == []
        assert (await chain.stats()).healed_total == 1

    async def test_the_counters_tell_hits(self, chain: Chain, gateway: Gateway) -> None:
        for key in (1, 2):
            await finish(gateway, key)
        assert gateway.cached_tokens == {1: 0, 2: 4}
        stats = await chain.stats()
        assert (stats.cached_tokens_total, stats.admitted_prompt_tokens_total) == (4, 10)


class TestTheQueue:
    async def test_what_it_has_no_room_for_is_told_when_to_come_again(self) -> None:
        async with chain_of(max_waiting=1) as chain:
            gateway = await chain.gateway()
            chain.runner.gate.clear()
            for key in range(1, 6):
                await gateway.submit(key, max_tokens=2)
            await gateway.until(lambda _: gateway.rejected)
            rejected = next(iter(gateway.rejected.values()))
            assert (rejected.code, rejected.reason) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
            assert rejected.retry_after == Duration(seconds=1)
            chain.runner.gate.set()
            await gateway.until(lambda _: len(gateway.finished) + len(gateway.rejected) == 5)
            assert (await chain.stats()).rejected_total == len(gateway.rejected)

    async def test_a_request_whose_time_is_over_while_it_waits_fails_with_the_deadline(
        self, chain: Chain, gateway: Gateway
    ) -> None:
        chain.runner.gate.clear()
        for key in (1, 2, 3):
            await gateway.submit(key)
        await gateway.until(lambda _: len(gateway.accepted) == 3)
        await gateway.submit(4, remaining=Duration(nanos=1))
        await gateway.until(lambda _: 4 in gateway.accepted)
        chain.service.core.tick(float("inf"))
        chain.service._on_change()
        await gateway.until_finished(4)
        failure = gateway.finished[4].failure
        assert (failure.code, failure.reason) == ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")
        assert (await chain.stats()).expired_total == 1


@pytest.mark.parametrize(
    ("ours", "theirs", "prefix"),
    [
        (ChangeReason, pb.PageChangeReason, "PAGE_CHANGE_REASON_"),
        (PageState, pb.PageState, "PAGE_STATE_"),
        (WaitCause, pb.WaitCause, "WAIT_CAUSE_"),
        (MatchEnd, pb.MatchEnd, "MATCH_END_"),
    ],
)
def test_the_enums_of_the_core_are_those_of_the_proto(ours, theirs, prefix) -> None:
    named = {f"{prefix}{member.name}": int(member) for member in ours}
    assert named == {name: number for name, number in theirs.items() if number}


def test_every_state_of_a_request_has_its_number() -> None:
    names = {f"REQUEST_STATE_{state.name}" for state in ReqState}
    assert names == {name for name, number in pb.RequestState.items() if number}
