"""What a manager records of its plan stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from servicekit.plan_history import PlanHistory, read_history
from servicekit.recording import Recording, new_recording
from tests.cachesvc.chain import ADD_RUNNER, Chain, answer, manager_of
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.fake_runner_service import FakeRunnerService
from tests.cachesvc.rpc import served


@asynccontextmanager
async def recorded_chain(path: Path) -> AsyncIterator[Chain]:
    runner = FakeRunnerService()
    with new_recording(path) as writer:
        async with served(ADD_RUNNER, runner) as address, manager_of(address) as (service, channel):
            service.runner_client.record_to(writer)
            yield Chain(service, runner, channel)


def sampled(history: PlanHistory) -> list[int]:
    return [token_id for plan in history.plans for token_id in plan.sampled_ids.tolist()]


def kinds(path: Path) -> list[str | None]:
    with Recording(path) as recording:
        return [record.message.WhichOneof("message") for record in recording.records()]


async def test_every_plan_and_what_came_of_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    async with recorded_chain(path) as chain:
        gateway = await chain.gateway()
        await gateway.submit(1, max_tokens=9)
        await gateway.until_finished(1)
        await chain.until(lambda stats: stats.last_plan_id == stats.last_result_plan_id)
    history = read_history(path, allow_cut=False)
    assert sampled(history)[:9] == answer(1, 9)
    assert history.num_left_out == 0
    assert [plan.plan_id for plan, _ in history.read_plans()] == [
        plan.plan_id for plan in chain.runner.plans
    ]


async def test_over_lost_streams_each_plan_is_recorded_once(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    async with recorded_chain(path) as chain:
        gateway = await chain.gateway()
        chain.runner.gate.clear()
        await gateway.submit(1, max_tokens=12)
        for nth in range(4):
            chain.runner.cut()
            await chain.until(lambda stats, count=nth + 2: stats.attached_total == count)
        chain.runner.gate.set()
        await gateway.until_finished(1)
        await chain.until(lambda stats: stats.last_plan_id == stats.last_result_plan_id)
    history = read_history(path, allow_cut=False)
    plan_ids = [plan.plan_id for plan in history.plans]
    assert plan_ids == list(range(1, len(plan_ids) + 1))
    assert (history.num_left_out, history.num_attaches) == (0, 5)
    assert sampled(history)[:12] == answer(1, 12)
    assert kinds(path).count("result") == len(plan_ids)


async def test_a_runner_that_was_replaced_begins_anew_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    async with recorded_chain(path) as chain:
        gateway = await chain.gateway()
        chain.runner.gate.clear()
        await gateway.submit(1, max_tokens=9)
        await chain.runner.num_plans(3)
        chain.runner.runner = FakeRunner(chain.runner.runner.description, "boot-2")
        chain.runner.cut()
        await chain.until(lambda stats: stats.boot_id == "boot-2")
        chain.runner.gate.set()
        await gateway.until_finished(1)
        await chain.until(lambda stats: stats.last_plan_id == stats.last_result_plan_id)
    history = read_history(path, allow_cut=False)
    assert [plan.reset_rows for plan, _ in history.read_plans()].count(True) == 2
    assert sampled(history)[:9] == answer(1, 9)
    assert history.num_left_out == 2, "the first runner never answered them"
