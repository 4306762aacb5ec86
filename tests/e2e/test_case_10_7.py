"""Case 10.7: what the manager counts is right whenever it is asked, also when no step follows."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pagewire.v1 import cache_pb2 as pb

from servicekit.plan import Plan, Result
from tests.cachesvc.builders import describe
from tests.cachesvc.chain import ADD_RUNNER
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.fake_runner_service import FakeRunnerService
from tests.cachesvc.gateway_client import Gateway
from tests.cachesvc.rpc import channel_to, served
from tests.servicekit.scrape import free_address, scraped

NUM_ROWS = 10
NUM_PAGES = 64
PROMPT = (1, 2, 3, 4, 5)
WITHIN_S = 1.0


class SpoiltRunner(FakeRunner):
    """Has no token for the request of `spoilt_seed`."""

    spoilt_seed: int | None = None

    def execute_one(self) -> Any:
        answer = super().execute_one()
        if not isinstance(answer, Result):
            return answer
        plan: Plan = self.executed[-1]
        seeds = [self.memory.rows[idx].opened.seed for idx in plan.step_rows[plan.step_samples]]
        is_spoilt = np.array([seed == self.spoilt_seed for seed in seeds], dtype=np.bool_)
        return replace(answer, sampled_ids=np.where(is_spoilt, -1, answer.sampled_ids))


class Manager:
    """cachesvc as a process with its endpoint for Prometheus; a fake runner that can be held."""

    def __init__(self, metrics: str, runner: FakeRunnerService, gateway: Gateway) -> None:
        self._metrics = metrics
        self.runner = runner
        self.gateway = gateway

    async def held_with(self, keys: range) -> None:
        """Submit those, each for many tokens; the runner stands still a few steps after."""
        self.runner.gate.clear()
        for key in keys:
            await self.gateway.submit(key, (*PROMPT, key % 16), max_tokens=55)
        await self.gateway.until(lambda _: len(self.gateway.accepted) == keys.stop - 1)
        self.runner.gate.set()
        await self.runner.num_plans(len(self.runner.plans) + 6)
        self.runner.gate.clear()

    async def cancel(self, keys: range) -> None:
        for key in keys:
            await self.gateway.send(cancel=pb.Cancel(key=key))

    async def numbers(self) -> dict[str, float]:
        told = await scraped(self._metrics)
        return {name.removeprefix("pagewire_cache_"): value for name, value in told.items()}

    async def soon(self, **expected: float) -> dict[str, float]:
        """The numbers, once those are as expected."""
        return await self._until(lambda told: expected.items() <= told.items())

    async def empty(self) -> dict[str, float]:
        """The numbers, once nothing runs or waits and no page is held: within a second."""
        async with asyncio.timeout(WITHIN_S):
            return await self._until(
                lambda told: (
                    told["running_requests"] == told["waiting_requests"] == 0
                    and told["pages{state=free}"] + told["pages{state=evictable}"] == NUM_PAGES
                )
            )

    async def _until(self, holds: Any) -> dict[str, float]:
        while not holds(told := await self.numbers()):
            assert sum(told[f"pages{{state={state}}}"] for state in STATES) == NUM_PAGES
        return told


STATES = ("free", "evictable", "locked", "private", "quarantined")


@asynccontextmanager
async def manager_with(run_dir: Path, num_pages: int = NUM_PAGES) -> AsyncIterator[Manager]:
    runner = FakeRunnerService()
    description = describe(num_pages=num_pages, num_rows=NUM_ROWS, max_seq_len=64)
    runner.runner = SpoiltRunner(description)
    metrics, listen = free_address(), f"unix:{run_dir}/cache.sock"
    async with served(ADD_RUNNER, runner) as address:
        command = ["--listen", listen, "--runner", address, "--metrics", metrics]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cachesvc", *command, stderr=subprocess.DEVNULL
        )
        try:
            async with channel_to(listen) as channel:
                await channel.channel_ready()
                gateway = Gateway(channel)
                await gateway.open()
                await gateway.until(lambda _: gateway.opened and gateway.opened[-1].serving)
                yield Manager(metrics, runner, gateway)
                gateway.call.cancel()
        finally:
            process.terminate()
            await process.wait()


async def test_case_10_7_gauges_are_right_after_everything_is_cancelled(tmp_path: Path) -> None:
    """vllm-project/vllm #29928: gauges followed steps alone. Cancel all, and no step is left."""
    async with manager_with(tmp_path) as manager:
        keys = range(1, 2 * NUM_ROWS + 1)
        await manager.held_with(keys)
        await manager.soon(running_requests=NUM_ROWS, waiting_requests=NUM_ROWS)
        await manager.cancel(keys)
        await manager.soon(running_requests=0, waiting_requests=0)
        manager.runner.gate.set()
        told = await manager.empty()
    assert told["ended_requests_total{outcome=cancelled}"] == 2 * NUM_ROWS
    assert told["ended_requests_total{outcome=finished}"] == 0


async def test_case_10_7_each_end_is_counted_once_and_no_token_twice_by_a_preemption(
    tmp_path: Path,
) -> None:
    async with manager_with(tmp_path) as manager:
        gateway, finish, cancel, spoilt = manager.gateway, range(1, 6), range(6, 11), 11
        manager.runner.runner.spoilt_seed = spoilt  # type: ignore[attr-defined]
        for key in finish:  # five of 61 tokens, 16 pages each: more than there are
            await gateway.submit(key, (*PROMPT, key), max_tokens=55)
        await gateway.until_finished(*finish)
        told = await manager.empty()
        assert told["preempted_requests_total"] >= 1
        assert told["sampled_tokens_total"] == sum(map(len, gateway.tokens.values())) == 5 * 55
        assert told["admitted_prompt_tokens_total"] == 5 * 6
        await manager.held_with(cancel)
        await manager.soon(running_requests=5)
        await manager.cancel(cancel)
        manager.runner.gate.set()
        await gateway.submit(spoilt, PROMPT, max_tokens=5)
        await gateway.until_finished(spoilt)
        told = await manager.empty()
    outcomes = ("finished", "cancelled", "failed", "expired", "rejected")
    assert [told[f"ended_requests_total{{outcome={name}}}"] for name in outcomes] == [5, 5, 1, 0, 0]
