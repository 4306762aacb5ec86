"""The manager dies, or hangs, or loses a gateway: clients get their tokens, once each."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from pagewire.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2

from servicekit.health_check import is_serving
from tests.e2e.second_gateway import second_gateway
from tests.e2e.system import System, greedy, ids_of, running
from tests.e2e.tiny_model import clear_prompt

NUM_TOKENS = 150
KILLED_AFTER = 12  # tokens of the first answer


def drawn(prompt_ids: list[int], **fields: object) -> inference_pb2.GenerateRequest:
    request = greedy(prompt_ids, NUM_TOKENS, **fields)
    request.sampling.CopyFrom(sampling_pb2.SamplingParams(temperature=0.7, seed=11, logprobs=1))
    return request


@dataclass
class Said:
    """What a choice said."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    likeliest: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    end: tuple[int, int] | None = None  # reason, completion tokens


async def heard(call: Any, on_token: Callable[[], None] = lambda: None) -> list[Said]:
    """All that an answer said, by choice."""
    said: dict[int, Said] = defaultdict(Said)
    num_started = 0
    async for response in call:
        if response.HasField("started"):
            num_started += 1
        elif response.HasField("delta"):
            delta = response.delta
            choice = said[delta.choice]
            assert choice.end is None, "something after the end"
            choice.text += delta.text
            choice.token_ids += delta.token_ids
            choice.likeliest += [one.top[0].token_id for one in delta.logprobs]
            choice.logprobs += [one.logprob for one in delta.logprobs]
            on_token()
        else:
            ended = response.finished
            assert said[ended.choice].end is None, "two ends"
            said[ended.choice].end = (ended.reason, ended.usage.completion_tokens)
    assert num_started == 1
    return [said[choice] for choice in sorted(said)]


async def sse_text(address: str, prompt_ids: list[int]) -> str:
    """The text of a stream of the OpenAI API."""
    body = {
        "model": "tiny",
        "prompt": prompt_ids,
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
    }
    text = ""
    async with (
        httpx2.AsyncClient(base_url=f"http://{address}", timeout=60) as http,
        http.stream("POST", "/v1/completions", json=body) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                text += "".join(choice["text"] for choice in chunk["choices"])
    return text


async def test_a_killed_manager_costs_a_pause_and_no_token(tiny_dir: Path, tmp_path: Path) -> None:
    """Greedy ones, a seeded draw with log probabilities, a stop string, two choices, one over HTTP:
    each as in its undisturbed run.
    """
    prompts = [clear_prompt(tiny_dir, length, NUM_TOKENS) for length in (5, 17, 40)]
    stopped = greedy(prompts[0][0], NUM_TOKENS)
    requests = [
        greedy(prompts[0][0], NUM_TOKENS),
        greedy(prompts[2][0], NUM_TOKENS),
        drawn([7, 8, 9]),
        drawn([10, 11, 12, 13], n=2),
        stopped,
    ]

    async def asked(system: System, on_token: Callable[[], None] = lambda: None) -> list[Any]:
        async with system.client() as stub:
            calls: list[Awaitable[Any]] = [heard(stub.Generate(requests[0]), on_token)]
            calls += [heard(stub.Generate(request)) for request in requests[1:]]
            return await asyncio.gather(*calls, sse_text(system.http_address, prompts[1][0]))

    settings = {"num_threads": 1, "num_pages": 96, "served_name": "tiny"}
    with running(System(tiny_dir, tmp_path, **settings)) as system:
        (whole,) = (await asked(system))[0]
        stopped.stop.strings.append(whole.text[len(whole.text) // 2 :][:4])
        expected = await asked(system)
        num_tokens = 0

        def kill() -> None:
            nonlocal num_tokens
            num_tokens += 1
            if num_tokens == KILLED_AFTER:
                system.kill("cachesvc")
                system.start_one("cachesvc")

        answers = await asked(system, kill)
        stats = await system.settled()
        gateway_log = system.log_of("gateway")
    assert whole.token_ids == prompts[0][1]
    assert expected[4][0].end[0] == inference_pb2.FINISH_REASON_STOP
    for answer, undisturbed in zip(answers[2] + answers[3], expected[2] + expected[3], strict=True):
        assert len(answer.logprobs) == len(answer.token_ids) == NUM_TOKENS
        assert answer.logprobs == pytest.approx(undisturbed.logprobs, abs=1e-3)
        answer.logprobs = (
            undisturbed.logprobs
        )  # computed in another order, they may round otherwise
    assert answers == expected
    assert stats.resubmitted_total >= 3, "all but those that had ended"
    assert 'event="session with cachesvc lost"' in gateway_log


async def test_a_manager_killed_before_it_has_a_runner_is_waited_for_too(
    tiny_dir: Path, tmp_path: Path
) -> None:
    prompt_ids, expected = clear_prompt(tiny_dir, 6, 100)
    with running(System(tiny_dir, tmp_path, num_threads=1)) as system:
        async with system.client() as stub:
            call = stub.Generate(greedy(prompt_ids, 100))
            first = [await call.read() for _ in range(5)]
            for name in ("runnersvc", "cachesvc"):
                await asyncio.to_thread(system.kill, name)
            system.start_one("cachesvc")
            await until(lambda: "runner not attached" in system.log_of("cachesvc"))
            await asyncio.to_thread(system.kill, "cachesvc")
            system.start_one("cachesvc")
            system.start_one("runnersvc")
            rest = await ids_of(call)
        stats = await system.settled()
    assert [i for response in first for i in response.delta.token_ids] + rest == expected
    assert stats.resubmitted_total == 1


async def until(holds: Callable[[], bool]) -> None:
    """Asks again until it holds."""
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(holds):
            pass


async def test_a_manager_that_hangs_turns_health_and_loses_nothing(
    tiny_dir: Path, tmp_path: Path
) -> None:
    prompt_ids, expected = clear_prompt(tiny_dir, 6, NUM_TOKENS)
    settings = {"num_threads": 1, "manager_silence_s": 1.5}
    with running(System(tiny_dir, tmp_path, **settings)) as system:
        async with system.client() as stub:
            call = stub.Generate(greedy(prompt_ids, NUM_TOKENS))
            first = [await call.read() for _ in range(5)]
            system.processes["cachesvc"].send_signal(signal.SIGSTOP)
            try:
                await until(lambda: not is_serving(system.address))
                refused = await stub.Generate(greedy([1], 2)).code()
            finally:
                system.processes["cachesvc"].send_signal(signal.SIGCONT)
            await until(lambda: is_serving(system.address))
            rest = await ids_of(call)
        stats = await system.settled()
        gateway_log = system.log_of("gateway")
    assert refused is grpc.StatusCode.UNAVAILABLE
    assert [i for response in first for i in response.delta.token_ids] + rest == expected
    assert stats.resubmitted_total == 0, "the session was never lost"
    assert 'event="manager silent"' in gateway_log
    assert 'event="manager answers again"' in gateway_log


async def test_a_killed_gateway_takes_its_own_requests_along_and_no_others(
    tiny_dir: Path, tmp_path: Path
) -> None:
    prompt_ids, expected = clear_prompt(tiny_dir, 6, NUM_TOKENS)
    system = System(tiny_dir, tmp_path, num_threads=1, max_running_reqs=4)
    with running(system), second_gateway(system, tmp_path) as second:
        async with system.client() as stub, grpc.aio.insecure_channel(second.address) as channel:
            kept = stub.Generate(greedy(prompt_ids, NUM_TOKENS))
            other = inference_pb2_grpc.InferenceServiceStub(channel)
            lost = [other.Generate(greedy([1, 2, nth], 200)) for nth in range(6)]
            first = [await kept.read() for _ in range(5)]
            for call in lost:
                await call.read()
            second.process.send_signal(signal.SIGKILL)
            assert await lost[0].code() is grpc.StatusCode.UNAVAILABLE
            rest = await ids_of(kept)
        stats = await system.settled()
    assert [i for response in first for i in response.delta.token_ids] + rest == expected
    assert stats.cancelled_total == 6
    assert stats.free_pages + stats.evictable_pages == stats.num_pages
