"""The router smg 1.13.0 in front: what its clients get is what the gateway's own clients get.

What smg itself leaves out, whatever stands behind it: the log probability of the end token, those
of completions, and logit_bias, which it does not pass on. It counts the tokens of a stop string,
where the gateway's own usage counts those of the answer. On other machines than x86_64 there is no
wheel of it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionTokenLogprob
from pagewire.v1 import cache_pb2

from tests.e2e.openai_client import client
from tests.e2e.router import Router, routed
from tests.e2e.system import System

pytest.importorskip("smg", reason="smg has no wheel for this machine")

MODEL = "smollm2-135m-instruct"
QUESTION: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 24,
}
NUMBERS: dict[str, Any] = {
    "model": MODEL,
    "prompt": "1, 1, 2, 3, 5, 8,",
    "temperature": 0,
    "max_tokens": 16,
}
STORY: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Tell me a long story."}],
    "temperature": 0,
    "max_tokens": 4000,
    "extra_body": {"ignore_eos": True},
}
FEW_TOKENS = 50  # of 4,000: sampled before a request ends whose client is gone


@pytest.fixture(scope="module")
def router(smollm2: System, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    with routed(smollm2, tmp_path_factory.mktemp("router")) as router:
        yield router


@pytest.fixture
async def smg(router: Router) -> AsyncIterator[AsyncOpenAI]:
    address = f"http://{router.http_address}/v1"
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=0) as smg:
        yield smg


@pytest.fixture
async def own(smollm2: System) -> AsyncIterator[AsyncOpenAI]:
    async with client(smollm2) as own:
        yield own


async def test_a_chat_is_answered_as_by_the_gateway_itself(
    smg: AsyncOpenAI, own: AsyncOpenAI
) -> None:
    answers = [await one.chat.completions.create(**QUESTION) for one in (smg, own)]
    first, second = (answer.choices[0] for answer in answers)
    assert first.message.content == second.message.content == "The capital of France is Paris."
    assert first.finish_reason == second.finish_reason == "stop"
    assert counts(answers[0].usage) == counts(answers[1].usage) == (37, 8)


def counts(usage: CompletionUsage | None) -> tuple[int, int]:
    assert usage is not None
    return usage.prompt_tokens, usage.completion_tokens


async def test_so_are_draws_with_a_seed(smg: AsyncOpenAI, own: AsyncOpenAI) -> None:
    drawn = QUESTION | {"temperature": 1.0, "top_p": 0.9, "seed": 5}
    answers = [await one.chat.completions.create(**drawn) for one in (smg, own)]
    first, second = (answer.choices[0].message.content for answer in answers)
    assert first == second != "The capital of France is Paris."


@pytest.mark.parametrize("stop", [None, [" 20"], ["0, 2"]])
async def test_a_prompt_is_completed_as_by_the_gateway_itself(
    smg: AsyncOpenAI, own: AsyncOpenAI, stop: list[str] | None
) -> None:
    request = NUMBERS | {"stop": stop}
    answers = [await one.completions.create(**request) for one in (smg, own)]
    first, second = (answer.choices[0] for answer in answers)
    assert first.text == second.text
    assert first.finish_reason == second.finish_reason == ("stop" if stop else "length")


async def test_a_stream_has_the_same_text_and_a_last_chunk_of_usage(
    smg: AsyncOpenAI, own: AsyncOpenAI
) -> None:
    answer = await own.chat.completions.create(**QUESTION)
    chunks = [
        chunk
        async for chunk in await smg.chat.completions.create(
            **QUESTION, stream=True, stream_options={"include_usage": True}
        )
    ]
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    texts = [choice.delta.content for choice in choices if choice.delta.content]
    assert "".join(texts) == answer.choices[0].message.content
    assert len(texts) > 1
    assert choices[-1].finish_reason == "stop"
    assert not chunks[-1].choices
    usage = chunks[-1].usage
    assert counts(usage) == counts(answer.usage)
    assert usage.prompt_tokens_details.cached_tokens == 32, "the same prompt, in whole pages"


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_are_those_of_the_gateway_itself(
    smg: AsyncOpenAI, own: AsyncOpenAI, stream: bool
) -> None:
    """But for the end token's, which smg leaves out."""
    request = QUESTION | {"logprobs": True, "top_logprobs": 2}
    *expected, _end = (await own.chat.completions.create(**request)).choices[0].logprobs.content
    found = []
    if stream:
        async for chunk in await smg.chat.completions.create(**request, stream=True):
            if chunk.choices and chunk.choices[0].logprobs:
                found += chunk.choices[0].logprobs.content
    else:
        found = (await smg.chat.completions.create(**request)).choices[0].logprobs.content
    assert tokens_of(found) == tokens_of(expected)
    assert logprobs_of(found) == pytest.approx(logprobs_of(expected), abs=1e-3)


def tokens_of(content: list[ChatCompletionTokenLogprob]) -> list[str]:
    """Of each token itself, then the likeliest."""
    return [one.token for token in content for one in (token, *token.top_logprobs)]


def logprobs_of(content: list[ChatCompletionTokenLogprob]) -> list[float]:
    return [one.logprob for token in content for one in (token, *token.top_logprobs)]


async def test_a_client_that_leaves_a_stream_ends_its_request(
    smg: AsyncOpenAI, smollm2: System
) -> None:
    """Smg sends Abort and leaves the call to the gateway open."""
    before = await smollm2.settled()
    stream = await smg.chat.completions.create(**STORY, stream=True)
    for _ in range(4):
        await anext(stream)
    await stream.close()
    await check_one_cancelled(smollm2, before)


async def test_so_does_one_that_waits_for_the_whole_answer(
    smg: AsyncOpenAI, smollm2: System
) -> None:
    before = await smollm2.settled()
    answer = asyncio.create_task(smg.chat.completions.create(**STORY))
    await smollm2.running(1)
    answer.cancel()
    await asyncio.gather(answer, return_exceptions=True)
    await check_one_cancelled(smollm2, before)


async def check_one_cancelled(system: System, before: cache_pb2.GetStatsResponse) -> None:
    after = await system.settled()
    assert after.cancelled_total == before.cancelled_total + 1
    assert after.finished_total == before.finished_total
    assert after.sampled_tokens_total - before.sampled_tokens_total < FEW_TOKENS


async def test_what_is_not_served_is_refused_by_name_through_the_router(smg: AsyncOpenAI) -> None:
    with pytest.raises(BadRequestError, match=r"sampling_params\.json_schema is not served"):
        await smg.chat.completions.create(**QUESTION, response_format={"type": "json_object"})


def test_grpcurl_finds_and_calls_the_service(
    router: Router, smollm2: System, grpcurl_path: str
) -> None:
    def called(what: str) -> str:
        command = [grpcurl_path, "-plaintext", router.gateway_address, what]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=True
        ).stdout

    service = "vllm.grpc.engine.VllmEngine"
    assert service in called("list").split()
    assert json.loads(called(f"{service}/HealthCheck")) == {"healthy": True}
    (load,) = json.loads(called(f"{service}/GetLoads"))["loads"]
    stats = smollm2.stats()
    assert load["max_total_num_tokens"] == stats.num_pages * stats.page_size
