"""Greedy answers in float32 equal those of transformers, whatever pages, chunks, rows and stream
do.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.stream_cutter import StreamCutter
from tests.e2e.system import System, greedy, ids_of, running
from tests.e2e.tiny_model import clear_prompt, reference_ids

SMOLLM2_PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea,",
    "Die drei größten Städte Deutschlands sind",
    "1, 1, 2, 3, 5, 8, 13,",
)


def clear_prompts(
    model_dir: Path, lengths: list[int], num_tokens: int
) -> tuple[list[list[int]], list[list[int]]]:
    pairs = [clear_prompt(model_dir, length, num_tokens) for length in lengths]
    return [ids for ids, _ in pairs], [answer for _, answer in pairs]


async def test_smollm2_answers_as_transformers_does_for_five_prompts(
    smollm2: System, smollm2_dir: Path
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    prompts = [tokenizer(text)["input_ids"] for text in SMOLLM2_PROMPTS]
    async with smollm2.client() as stub:
        answers = await asyncio.gather(*(ids_of(stub.Generate(greedy(ids, 64))) for ids in prompts))
    expected = await asyncio.to_thread(
        lambda: [reference_ids(smollm2_dir, ids, 64) for ids in prompts]
    )
    assert answers == expected
    await smollm2.settled()


@pytest.mark.parametrize("page_size", [1, 4, 16])
async def test_tiny_llama_is_exact_around_page_borders_in_chunks_and_with_too_few_rows_and_pages(
    page_size: int, tiny_dir: Path, tmp_path: Path
) -> None:
    lengths = [1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65]
    settings = {
        "num_threads": 1,
        "page_size": page_size,
        "num_pages": 160 // page_size,  # the longest request needs 105 tokens; several do not fit
        "max_running_reqs": 5,
        "step_budget_tokens": 24,  # prompts above it come in chunks, beside decoding rows
    }
    prompts, expected = clear_prompts(tiny_dir, lengths, 40)
    with running(System(tiny_dir, tmp_path, **settings)) as system:
        async with system.client() as stub:
            answers = await asyncio.gather(
                *(ids_of(stub.Generate(greedy(ids, 40))) for ids in prompts)
            )
        stats = await system.settled()
    assert answers == expected
    assert stats.preempted_total > 0, "the pool was meant to be too small"
    assert stats.max_used_pages <= stats.num_pages
    assert stats.refused_total == 0


async def test_a_repetition_penalty_is_that_of_transformers_also_after_a_preemption(
    tiny_dir: Path, tmp_path: Path
) -> None:
    """Three at once with pages for two: what is sampled again obeys the same history."""
    settings = {"num_threads": 1, "page_size": 4, "num_pages": 24, "max_running_reqs": 4}
    prompts = [list(range(5 + nth, 15 + nth)) for nth in range(3)]
    expected = [reference_ids(tiny_dir, ids, 40, repetition_penalty=1.2) for ids in prompts]
    with running(System(tiny_dir, tmp_path, **settings)) as system:
        async with system.client() as stub:
            requests = [greedy(ids, 40) for ids in prompts]
            for request in requests:
                request.sampling.repetition_penalty = 1.2
            answers = await asyncio.gather(*(ids_of(stub.Generate(one)) for one in requests))
        stats = await system.settled()
    assert stats.preempted_total > 0, "the pool was meant to be too small"
    assert answers == expected


async def test_a_stream_reset_in_mid_answer_changes_nothing(tiny_dir: Path, tmp_path: Path) -> None:
    """Execute is cut every few tokens, with whatever is on its way; the runner lives.

    That plans and results which were on their way are sent again is held, cut by cut, by
    tests/cachesvc/test_recovery.py and tests/runnersvc/test_service.py.
    """
    prompts, expected = clear_prompts(tiny_dir, [3, 16, 30, 50], 150)
    cutter = StreamCutter(tmp_path / "cut.sock", tmp_path / "runner.sock")
    system = System(tiny_dir, tmp_path, runner_front=cutter.front_address, num_threads=1)
    with cutter.running(), running(system):
        boot_id = system.stats().boot_id
        async with system.client() as stub:
            calls = [stub.Generate(greedy(ids, 150)) for ids in prompts]
            answers: list[list[int]] = [[] for _ in calls]
            cuts = 0

            async def read(nth: int) -> None:
                nonlocal cuts
                async for response in calls[nth]:
                    answers[nth] += response.delta.token_ids
                    if nth == 0 and len(answers[0]) > 8 * (cuts + 1):
                        cuts += cutter.cut()

            await asyncio.gather(*(read(nth) for nth in range(len(calls))))
        stats = await system.settled()
    assert answers == expected
    assert cuts >= 4
    assert stats.attached_total >= 1 + cuts // 2  # one may come while it attaches
    assert stats.boot_id == boot_id
    assert stats.refused_total == 0
    assert stats.prompt_tokens_total == sum(map(len, prompts)), "nothing was computed again"


async def test_a_killed_runner_costs_a_pause_and_no_token(tiny_dir: Path, tmp_path: Path) -> None:
    prompts, expected = clear_prompts(tiny_dir, [5, 40], 200)
    with running(System(tiny_dir, tmp_path, num_threads=1)) as system:
        async with system.client() as stub:
            calls = [stub.Generate(greedy(ids, 200)) for ids in prompts]
            first = [await calls[0].read() for _ in range(10)]
            await asyncio.to_thread(system.kill, "runnersvc")
            system.start_one("runnersvc")
            rest = await asyncio.gather(*(ids_of(call) for call in calls))
        stats = await system.settled()
    answers = [[i for response in first for i in response.delta.token_ids] + rest[0], rest[1]]
    assert answers == expected
    assert stats.attached_total == 2
