"""The runner hangs, is killed, or dies of a request: health says so, and answers are exact."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import numpy as np
import pytest

from runnersvc.fake_model import DrawnTokens
from servicekit.errors import Reason
from servicekit.health_check import is_serving
from servicekit.status import error_of
from tests.e2e.system import System, greedy, ids_of, running

SEED = 3
NUM_TOKENS = 200
DEADLY_ID = 99
STEP_MS = 10  # so that an answer lasts for seconds
WITHIN_S = 20  # bounds what would else hang; nothing is timed


class FakeSystem(System):
    """With a fake runner, whose answers are known without a model."""

    def __init__(self, model_dir: Path, run_dir: Path, dying: str = "exit") -> None:
        super().__init__(model_dir, run_dir, runner_silence_s=1, step_ms=STEP_MS)
        self._dying = dying

    def command(self, name: str) -> list[str]:
        command = super().command(name)
        if name != "runnersvc":
            return command
        deadly = ["--deadly-id", str(DEADLY_ID), "--dying", self._dying]
        return [sys.executable, "-m", "tests.e2e.deadly_fake", *command[3:], *deadly]

    def is_serving(self, name: str) -> bool:
        return is_serving({"cachesvc": self.cache_address, "gateway": self.address}[name])

    async def health(self, *, serving: bool) -> None:
        """Return when manager and gateway say that, by gRPC and HTTP."""
        http_address = f"http://{self.http_address}"
        async with (
            asyncio.timeout(WITHIN_S),
            httpx2.AsyncClient(base_url=http_address, timeout=WITHIN_S) as http,
        ):
            for name in ("cachesvc", "gateway"):
                while await asyncio.to_thread(self.is_serving, name) != serving:
                    if self.processes[name].poll() is not None:
                        break  # nobody there is not serving either
            while (await http.get("/ready")).is_success != serving:
                pass
            assert (await http.get("/health")).is_success, "the gateway itself lives"

    def lines_of(self, name: str, event: str) -> list[dict[str, str]]:
        return [
            dict(word.partition("=")[::2] for word in shlex.split(line))
            for line in self.log_of(name).splitlines()
            if f'event="{event}"' in line
        ]

    @contextlib.asynccontextmanager
    async def kept_up(self) -> AsyncIterator[None]:
        """A runner that ended is started again, while the context lasts."""

        async def keep_up() -> None:
            while True:
                await asyncio.to_thread(self.processes["runnersvc"].wait)
                self.start_one("runnersvc")

        task = asyncio.create_task(keep_up())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def request(prompt_ids: list[int], num_tokens: int = NUM_TOKENS) -> Any:
    asked = greedy(prompt_ids, num_tokens)
    asked.sampling.seed = SEED
    return asked


def answer(model_dir: Path, prompt_ids: list[int], num_tokens: int = NUM_TOKENS) -> list[int]:
    vocab_size = json.loads((model_dir / "config.json").read_text())["vocab_size"]
    positions = len(prompt_ids) + np.arange(num_tokens, dtype=np.int32)
    seeds, choices = np.full(num_tokens, SEED), np.zeros(num_tokens, dtype=np.int32)
    return DrawnTokens(vocab_size).choose(seeds, choices, positions).tolist()


PROMPTS = [[5, 6, 7], [8] * 20, [9, 10], [11, 12, 13, 14]]


async def begun(calls: list[Any]) -> list[list[int]]:
    """The first tokens of each."""
    tokens: list[list[int]] = []
    for call in calls:
        heard: list[int] = []
        while len(heard) < 3:
            heard += (await call.read()).delta.token_ids
        tokens.append(heard)
    return tokens


async def test_a_runner_that_hangs_shows_in_health_and_the_answer_is_exact(
    tiny_dir: Path, tmp_path: Path
) -> None:
    with running(FakeSystem(tiny_dir, tmp_path)) as system:
        async with system.client() as stub:
            call = stub.Generate(request(PROMPTS[0]))
            (first,) = await begun([call])
            with system.held():
                await system.health(serving=False)
                assert (await asyncio.to_thread(system.stats)).runner_silent
                waiting = stub.Generate(request(PROMPTS[1]))
            await system.health(serving=True)
            rest, other = await asyncio.gather(ids_of(call), ids_of(waiting))
        stats = await system.settled()
        assert first + rest == answer(tiny_dir, PROMPTS[0])
        assert other == answer(tiny_dir, PROMPTS[1])
        assert (stats.attached_total, stats.runner_silent) == (1, False)
        (silent,) = system.lines_of("cachesvc", "runner silent")
        assert int(silent["plans_in_flight"]) > 0
        assert len(system.lines_of("cachesvc", "runner answers again")) == 1


async def test_a_runner_killed_while_it_hangs_is_replaced(tiny_dir: Path, tmp_path: Path) -> None:
    """Its socket took connections to the end, and nobody answered on them."""
    with running(FakeSystem(tiny_dir, tmp_path)) as system:
        async with system.client() as stub:
            call = stub.Generate(request(PROMPTS[0]))
            (first,) = await begun([call])
            system.processes["runnersvc"].send_signal(signal.SIGSTOP)
            await system.health(serving=False)
            await asyncio.to_thread(system.kill, "runnersvc")
            system.start_one("runnersvc")
            await system.health(serving=True)
            assert first + await ids_of(call) == answer(tiny_dir, PROMPTS[0])


@pytest.mark.parametrize("dying", ["raise", "exit"])
async def test_a_request_that_runners_die_of_fails_alone(
    dying: str, tiny_dir: Path, tmp_path: Path
) -> None:
    with running(FakeSystem(tiny_dir, tmp_path, dying)) as system:
        async with system.client() as stub, system.kept_up():
            calls = [stub.Generate(request(prompt)) for prompt in PROMPTS]
            first = await begun(calls)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ids_of(stub.Generate(request([1, 2, DEADLY_ID])))
            rest = await asyncio.gather(*(ids_of(call) for call in calls))
            stats = await system.settled()
    error = error_of(caught.value)
    assert (error.code_name, error.reason) == ("INTERNAL", Reason.RUNNER_DIED_TWICE)
    answers = [begin + end for begin, end in zip(first, rest, strict=True)]
    assert answers == [answer(tiny_dir, prompt) for prompt in PROMPTS]
    assert (stats.poisoned_total, stats.failed_total, stats.attached_total) == (1, 1, 3)
    (poisoned,) = system.lines_of("cachesvc", "request poisoned")
    assert poisoned["runner_deaths"] == "2"
    said = len(system.lines_of("cachesvc", "plan failed in the runner"))
    assert said == (2 if dying == "raise" else 0)


@pytest.mark.parametrize("killed", ["runnersvc", "cachesvc"])
async def test_case_10_1_health_follows_a_death_at_once_and_streams_go_on(
    killed: str, tiny_dir: Path, tmp_path: Path
) -> None:
    """sgl-project/sglang #6624: health said 200 for an hour after the scheduler died. Here a new
    request waits while the manager is there to take it, and is refused at once while it is not.
    """
    with running(FakeSystem(tiny_dir, tmp_path)) as system:
        async with system.client() as stub:
            calls = [stub.Generate(request(prompt)) for prompt in PROMPTS]
            first = await begun(calls)
            await asyncio.to_thread(system.kill, killed)
            await system.health(serving=False)
            newcomer = stub.Generate(request([1, 2, 3], 5))
            if killed == "cachesvc":
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await ids_of(newcomer)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                assert error_of(caught.value).reason is Reason.CHAIN_NOT_ATTACHED
            system.start_one(killed)
            await system.health(serving=True)
            rest = await asyncio.gather(*(ids_of(call) for call in calls))
            if killed == "runnersvc":
                assert await ids_of(newcomer) == answer(tiny_dir, [1, 2, 3], 5)
        await system.settled()
    answers = [begin + end for begin, end in zip(first, rest, strict=True)]
    assert answers == [answer(tiny_dir, prompt) for prompt in PROMPTS]
