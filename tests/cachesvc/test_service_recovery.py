"""The manager while its runner is late, cut off, replaced, or wrong; and what it counts."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
from pagewire.v1 import cache_pb2 as pb

from cachesvc.core import Core
from cachesvc.limits import Limits
from cachesvc.runner_client import RunnerClient
from servicekit.errors import AlreadyExists, FailedPrecondition, Reason
from servicekit.plan import Plan
from tests.cachesvc.builders import describe, ints
from tests.cachesvc.chain import ADD_RUNNER, Chain, answer, manager_of
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.fake_runner_service import FakeRunnerService
from tests.cachesvc.gateway_client import PATIENCE_S, Gateway
from tests.cachesvc.rpc import failure_of, served, served_at, socket_address


@pytest.fixture
async def chain() -> AsyncIterator[Chain]:
    runner = FakeRunnerService()
    async with served(ADD_RUNNER, runner) as address, manager_of(address) as (service, channel):
        yield Chain(service, runner, channel)


@pytest.fixture
def runner_address() -> Iterator[str]:
    with socket_address() as address:
        yield address


@asynccontextmanager
async def chain_without_runner(runner_address: str) -> AsyncIterator[Chain]:
    async with manager_of(runner_address) as (service, channel):
        yield Chain(service, FakeRunnerService(), channel)


class TestBeforeTheFirstRunner:
    async def test_a_session_opens_and_says_so(self, runner_address: str) -> None:
        async with chain_without_runner(runner_address) as chain:
            gateway = Gateway(chain.channel)
            await gateway.open()
            await gateway.hear()
        assert [opened.serving for opened in gateway.opened] == [False]
        assert not gateway.opened[0].HasField("limits")

    async def test_requests_are_rejected(self, runner_address: str) -> None:
        async with chain_without_runner(runner_address) as chain:
            gateway = Gateway(chain.channel)
            await gateway.open()
            await gateway.submit(1)
            await gateway.until(lambda _: gateway.rejected)
        rejected = gateway.rejected[1]
        assert (rejected.code, rejected.reason) == ("UNAVAILABLE", "CHAIN_NOT_ATTACHED")

    async def test_sessions_hear_when_it_comes(self, runner_address: str) -> None:
        async with chain_without_runner(runner_address) as chain:
            gateway = Gateway(chain.channel)
            await gateway.open()
            await gateway.hear()
            async with served_at(runner_address, ADD_RUNNER, chain.runner):
                await gateway.until(lambda _: gateway.opened[-1].serving)
        assert gateway.opened[-1].limits.max_seq_len == 24

    async def test_a_session_of_another_model_ends_when_it_comes(self, runner_address: str) -> None:
        """Nobody could compare fingerprints when the session opened; it was then served by a model
        whose tokenizer it does not have.
        """
        async with chain_without_runner(runner_address) as chain:
            gateway = Gateway(chain.channel)
            await gateway.open(model_fingerprint="another")
            await gateway.hear()
            async with served_at(runner_address, ADD_RUNNER, chain.runner):
                async with asyncio.timeout(PATIENCE_S):
                    error = await failure_of(gateway.call)
        assert isinstance(error, FailedPrecondition)
        assert error.reason is Reason.FINGERPRINT_MISMATCH


class TestACutStream:
    async def test_nothing_is_lost_or_doubled(self, chain: Chain) -> None:
        gateway = await chain.gateway()
        chain.runner.gate.clear()
        await gateway.submit(1, max_tokens=9)
        await chain.runner.num_plans(3)
        chain.runner.cut()
        await chain.until(lambda stats: stats.attached_total == 2)
        chain.runner.gate.set()
        await gateway.until_finished(1)
        assert gateway.tokens[1] == answer(1, 9)
        assert len([plan for plan in chain.runner.plans if plan.reset_rows]) == 1

    async def test_again_and_again(self, chain: Chain) -> None:
        gateway = await chain.gateway()
        chain.runner.gate.clear()
        await gateway.submit(1, max_tokens=12)
        for nth in range(4):
            chain.runner.cut()
            await chain.until(lambda stats, count=nth + 2: stats.attached_total == count)
        chain.runner.gate.set()
        await gateway.until_finished(1)
        assert gateway.tokens[1] == answer(1, 12)

    async def test_sessions_hear_of_it_and_requests_may_come_meanwhile(self, chain: Chain) -> None:
        gateway = await chain.gateway()
        chain.runner.attach_error = AlreadyExists(Reason.STREAM_ALREADY_LIVE, "not yet")
        chain.runner.cut()
        await gateway.until(lambda _: not gateway.opened[-1].serving)
        assert gateway.opened[-1].limits.max_seq_len == 24
        await gateway.submit(1, max_tokens=3)
        await gateway.until(lambda _: gateway.accepted)
        chain.runner.attach_error = None
        await gateway.until_finished(1)
        assert gateway.tokens[1] == answer(1, 3)
        assert gateway.opened[-1].serving


class TestAnotherRunner:
    async def test_a_request_goes_on_after_the_runner_died(self, runner_address: str) -> None:
        async with AsyncExitStack() as stack:
            first = FakeRunnerService()
            death = await stack.enter_async_context(AsyncExitStack())
            await death.enter_async_context(served_at(runner_address, ADD_RUNNER, first))
            service, channel = await stack.enter_async_context(manager_of(runner_address))
            chain = Chain(service, first, channel)
            gateway = await chain.gateway()
            first.gate.clear()
            await gateway.submit(1, max_tokens=9)
            await first.num_plans(3)
            await death.aclose()
            await gateway.until(lambda _: not gateway.opened[-1].serving)
            second = FakeRunnerService(describe(num_pages=5, page_size=2), boot_id="boot-2")
            await stack.enter_async_context(served_at(runner_address, ADD_RUNNER, second))
            await gateway.until(lambda _: gateway.opened[-1].serving)
            assert gateway.opened[-1].limits.pool_tokens == 10
            await gateway.until(lambda _: len(gateway.tokens[1]) == 8)
            assert gateway.tokens[1] == answer(1, 8)  # 3 + 8 = 10 + 1 tokens
            await gateway.until_finished(1)
            assert gateway.finished[1].cause == pb.FINISH_CAUSE_CACHE_FULL
            assert (await chain.stats()).boot_id == "boot-2"

    async def test_one_that_hung_from_the_start_does_not_keep_the_next_one_out(
        self, runner_address: str
    ) -> None:
        """Its socket takes connections, as that of a stopped process does, and nobody answers."""
        path = runner_address.removeprefix("unix:")
        hung = socket.socket(socket.AF_UNIX)
        hung.bind(path)
        hung.listen()
        async with chain_without_runner(runner_address) as chain:
            gateway = Gateway(chain.channel)
            await gateway.open()
            connection, _ = await asyncio.to_thread(hung.accept)
            for held in (connection, hung):
                held.close()
            os.unlink(path)  # noqa: PTH108 # a call of this loop's own, and short
            async with served_at(runner_address, ADD_RUNNER, chain.runner):
                await gateway.until(lambda _: gateway.opened and gateway.opened[-1].serving)

    async def test_a_plan_that_fails_is_told_and_the_next_one_is_attached(
        self, chain: Chain
    ) -> None:
        gateway = await chain.gateway()
        chain.runner.runner.dies_of = {(1, 0)}
        await gateway.submit(1)
        await gateway.until(lambda _: chain.runner.runner.is_dead)
        for boot_id in ("boot-2", "boot-3"):
            chain.runner.runner = FakeRunner(describe(), boot_id, {(1, 0)})
            await chain.until(lambda stats, boot_id=boot_id: stats.boot_id == boot_id)
            if boot_id == "boot-2":
                await chain.until(lambda _: chain.runner.runner.is_dead)
        await gateway.until_finished(1)
        assert gateway.finished[1].failure.reason == "RUNNER_DIED_TWICE"
        assert (await chain.stats()).poisoned_total == 1

    async def test_one_of_another_model_is_not_driven(self, chain: Chain) -> None:
        gateway = await chain.gateway()
        right, wrong = chain.runner.runner, describe(model_fingerprint="another")
        chain.runner.runner = FakeRunner(wrong, "boot-2")
        num_plans = len(chain.runner.plans)
        chain.runner.cut()
        await gateway.until(lambda _: not gateway.opened[-1].serving)
        while chain.runner.num_attaches < 3:
            await chain.stats()  # until it has been tried twice
        assert not gateway.opened[-1].serving
        assert len(chain.runner.plans) == num_plans
        chain.runner.runner = right
        await gateway.until(lambda _: gateway.opened[-1].serving)


class TestRefusedPlans:
    async def test_a_named_request_fails_and_says_why(self, chain: Chain) -> None:
        gateway = await chain.gateway()
        take = chain.runner.runner.take

        def damage(plan: Plan) -> None:
            chain.runner.runner.take = take  # type: ignore[method-assign] # once
            take(replace(plan, literal_ids=ints(*[99] * len(plan.literal_ids))))

        chain.runner.runner.take = damage  # type: ignore[method-assign]
        await gateway.submit(1)
        await gateway.until_finished(1)
        ended = gateway.finished[1]
        assert ended.cause == pb.FINISH_CAUSE_FAILED
        assert (ended.failure.key, ended.failure.code) == (1, "INTERNAL")
        assert ended.failure.reason == "PLAN_REFUSED"
        assert "VOCAB" in ended.failure.message
        await gateway.submit(2, max_tokens=4)
        await gateway.until_finished(2)
        assert gateway.tokens[2] == answer(2, 4)
        stats = await chain.stats()
        assert (stats.refused_total, stats.failed_total, stats.finished_total) == (1, 1, 1)


class TestStats:
    async def test_before_the_first_runner_there_are_no_pages(self, runner_address: str) -> None:
        async with chain_without_runner(runner_address) as chain:
            stats = await chain.stats()
        assert not stats.attached
        assert len(stats.manager_id) == 16
        assert (stats.boot_id, stats.num_pages, stats.page_size) == ("", 0, 0)

    async def test_they_add_up_in_mid_flight(self, chain: Chain) -> None:
        gateway = await chain.gateway()
        chain.runner.gate.clear()
        for key in (1, 2, 3, 4):
            await gateway.submit(key, (1, 2, 3, 4, 5), max_tokens=2)
        await gateway.until(lambda _: len(gateway.accepted) == 4)
        await chain.runner.num_plans(3)
        stats = await chain.stats()
        assert stats.attached
        pages = (stats.free_pages, stats.evictable_pages, stats.locked_pages, stats.private_pages)
        assert sum(pages) == stats.num_pages == 8
        assert stats.private_pages + stats.locked_pages == stats.max_used_pages
        assert stats.running_requests + stats.waiting_requests == 4
        assert (stats.last_plan_id, stats.last_result_plan_id) == (3, 1)

    async def test_they_count_what_was_done(self, chain: Chain) -> None:
        gateway = await chain.gateway()
        await gateway.submit(1, (1, 2, 3, 4, 5), max_tokens=4)
        await gateway.until_finished(1)
        stats = await chain.until(lambda stats: not stats.private_pages)
        assert stats.prompt_tokens_total == 5
        assert stats.sampled_tokens_total == 4
        assert stats.finished_total == stats.attached_total == 1
        assert stats.executor_device_us_total > 0
        assert (stats.cancelled_total, stats.failed_total, stats.preempted_total) == (0, 0, 0)


async def test_a_mistake_while_planning_ends_the_client_and_is_not_silent(
    runner_address: str,
) -> None:
    """The sender's task died unheard, and the manager stood still with health SERVING."""

    class Mistaken(Core):
        def next_plan(self) -> Plan | None:
            raise AssertionError("a mistake of ours")

    client = RunnerClient(
        runner_address, Mistaken(Limits(step_budget_tokens=1, credits=1)), lambda: None
    )
    async with served_at(runner_address, ADD_RUNNER, FakeRunnerService()):
        with pytest.raises(AssertionError, match="a mistake of ours"):
            async with asyncio.timeout(5):
                await client.run()
