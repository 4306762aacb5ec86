"""Manager, stream and runner die under answers that a card computes, with CUDA graphs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import torch

from tests.e2e.stream_cutter import StreamCutter
from tests.e2e.system import System, greedy, ids_of, running
from tests.e2e.test_token_exact import clear_prompts
from tests.e2e.tiny_model import make_tiny_model

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="it needs a GPU"),
]

LENGTHS = [5, 33, 40, 70]
NUM_TOKENS = 150


def test_every_answer_of_a_card_outlives_what_dies(tmp_path: Path) -> None:
    model_dir = make_tiny_model(tmp_path / "model", head_dim=64)
    prompts, expected = clear_prompts(model_dir, LENGTHS, NUM_TOKENS)
    cutter = StreamCutter(tmp_path / "cut.sock", tmp_path / "runner.sock")
    settings = {"device": "cuda", "dtype": "float32", "num_pages": 64, "max_running_reqs": 8}
    system = System(
        model_dir, tmp_path, cutter.front_address, journal=tmp_path / "journal", **settings
    )

    async def answers(death) -> tuple[list[list[int]], float]:
        """All of them, and how long after the death."""
        async with system.client() as stub:
            calls = [stub.Generate(greedy(ids, NUM_TOKENS)) for ids in prompts]
            first = [await calls[0].read() for _ in range(8)]
            await asyncio.to_thread(death)
            began = time.monotonic()
            rest = await asyncio.gather(*map(ids_of, calls))
            took_s = time.monotonic() - began
        rest[0] = [i for response in first for i in response.delta.token_ids] + rest[0]
        return rest, took_s

    def kill(name: str) -> None:
        system.kill(name)
        system.start_one(name)

    with cutter.running(), running(system):
        deaths = {
            "nothing": lambda: None,
            "stream": cutter.cut,
            "manager": lambda: kill("cachesvc"),
            "runner": lambda: kill("runnersvc"),
            "manager again": lambda: kill("cachesvc"),
        }
        for name, death in deaths.items():
            told, took_s = asyncio.run(answers(death))
            assert told == expected, name
            print(f"{name}: all answers {took_s:.2f} s after it")  # a figure
        stats = asyncio.run(system.settled())
    assert stats.adopted_pages_total > 0
    assert "page table" not in system.log_of("cachesvc"), "a digest differed"
