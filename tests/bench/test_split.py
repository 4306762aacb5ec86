"""Manager and runner in one process, and how it is compared with the services."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.gpu.client import Run
from bench.gpu.in_process import InProcess
from bench.gpu.split import interleaved
from bench.gpu.workloads import alike, with_common_prefix
from bench.processes import BenchError
from cachesvc.limits import Limits
from runnersvc.fake import ANYTHING
from runnersvc.fake_model import DrawnTokens, FakeModel

RUNNER = replace(ANYTHING, num_pages=64, num_rows=4, max_seq_len=128)
LIMITS = Limits(step_budget_tokens=128, credits=2)


async def in_process(**changes: int) -> InProcess:
    runner = replace(RUNNER, **changes)
    served = InProcess(FakeModel(runner, DrawnTokens(runner.vocab_size)), runner, LIMITS)
    await served.attach()
    return served


async def test_one_process_serves_workload_after_workload():
    served = await in_process()
    given = alike("six", 6, 40, 20)  # two of them wait for a row
    for turn in range(3):
        run = await served.run(given.turn(turn))
        assert run.seconds > 0
        assert run.cached_tokens == 0
    served.stop()


async def test_the_prefix_cache_is_empty_when_a_run_begins():
    served = await in_process()
    shared = with_common_prefix("shared", 1, 64, 8, 3)
    for _ in range(2):
        assert (await served.run(shared)).cached_tokens == 0
    served.stop()


async def test_a_request_that_ends_early_leaves_no_figures():
    served = await in_process(num_pages=3)
    with pytest.raises(BenchError, match="ended with CACHE_FULL"):
        await served.run(alike("long", 1, 40, 20))
    served.stop()


async def test_pairs_are_interleaved_and_the_first_does_not_count():
    order: list[tuple[str, int]] = []

    def side(name: str, seconds: float):
        async def run(turn: int) -> Run:
            order.append((name, turn))
            return Run(0.0, seconds + turn, 0)

        return run

    measured = await interleaved(side("split", 10), side("whole", 20), num_pairs=2)
    assert measured == ([11, 12], [21, 22])
    assert order == [
        ("whole", 0), ("split", 0), ("split", 1), ("whole", 1), ("whole", 2), ("split", 2),
    ]  # fmt: skip


async def test_a_side_that_found_anything_in_the_cache_leaves_no_figures():
    async def hit(turn: int) -> Run:
        return Run(0.0, 1.0, 16)

    with pytest.raises(BenchError, match="whole: 16 tokens were cached"):
        await interleaved(hit, hit, num_pairs=1)
