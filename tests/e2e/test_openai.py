"""The `openai` package against the running system: the same answers as over gRPC, and none left
behind.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import openai
import pytest
from openai import AsyncOpenAI
from pagewire.v1 import cache_pb2, cache_pb2_grpc, sampling_pb2
from pagewire.v1 import inference_pb2 as pb

from servicekit.model_dir import model_name
from tests.e2e.neighbour import undisturbed
from tests.e2e.openai_client import client
from tests.e2e.system import System, running
from tests.e2e.tiny_model import MAX_SEQ_LEN, VOCAB_SIZE

MESSAGES = [{"role": "user", "content": "hello there"}]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


async def chat_over_grpc(
    system: System, messages: list[dict], max_tokens: int
) -> tuple[str, list[int], pb.Usage]:
    request = pb.ChatRequest(
        messages=[pb.ChatMessage(**message) for message in messages],
        sampling=sampling_pb2.SamplingParams(temperature=0),
        stop=pb.StopParams(max_tokens=max_tokens),
    )
    async with system.client() as stub:
        responses = [response async for response in stub.Chat(request)]
    ids = [token_id for response in responses for token_id in response.delta.token_ids]
    text = "".join(response.delta.text for response in responses)
    return text, ids, responses[-1].finished.usage


@pytest.mark.parametrize(("system_name", "messages"), [("tiny", MESSAGES), ("smollm2", QUESTION)])
async def test_a_chat_is_answered_as_over_grpc_token_for_token(
    system_name: str, messages: list[dict], request: pytest.FixtureRequest
) -> None:
    system: System = request.getfixturevalue(system_name)
    text, ids, usage = await chat_over_grpc(system, messages, 24)
    async with client(system) as ask:
        answer = await ask.chat.completions.create(
            model=model_name(system.model_dir), messages=messages, temperature=0, max_tokens=24
        )
        told = await ask.post("../tokenize", cast_to=object, body={"messages": messages})
    (choice,) = answer.choices
    assert choice.message.content == text
    assert (choice.message.role, choice.index) == ("assistant", 0)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(ids)
    assert answer.usage.prompt_tokens == usage.prompt_tokens == len(told["tokens"])
    assert choice.finish_reason == ("length" if len(ids) == 24 else "stop")
    if system_name == "smollm2":
        assert text == "The capital of France is Paris."


async def test_a_streamed_answer_is_the_whole_one_in_pieces(tiny: System) -> None:
    sampled = {"temperature": 1.0, "seed": 7, "max_tokens": 40, "extra_body": {"ignore_eos": True}}
    async with client(tiny) as ask:
        whole = await ask.chat.completions.create(
            model=model_name(tiny.model_dir), messages=MESSAGES, **sampled
        )
        stream = await ask.chat.completions.create(
            model=model_name(tiny.model_dir),
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
            **sampled,
        )
        chunks = [chunk async for chunk in stream]
    *texts, last = chunks
    assert texts[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content or "" for chunk in texts]
    assert "".join(pieces) == whole.choices[0].message.content
    assert texts[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens == 40
    assert last.usage.prompt_tokens_details.cached_tokens > 0  # the whole one left them there


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_are_those_over_grpc(tiny: System, *, stream: bool) -> None:
    request = pb.ChatRequest(
        messages=[pb.ChatMessage(**message) for message in MESSAGES],
        sampling=sampling_pb2.SamplingParams(temperature=0, logprobs=2),
        stop=pb.StopParams(max_tokens=12),
    )
    async with tiny.client() as stub:
        expected = [one async for said in stub.Chat(request) for one in said.delta.logprobs]
    asked = {"temperature": 0, "max_tokens": 12, "logprobs": True, "top_logprobs": 2}
    async with client(tiny) as ask:
        answer = await ask.chat.completions.create(
            model=model_name(tiny.model_dir), messages=MESSAGES, stream=stream, **asked
        )
        answers = [chunk async for chunk in answer] if stream else [answer]
    said = [each.choices[0].logprobs for each in answers]
    content = [one for logprobs in said if logprobs is not None for one in logprobs.content]
    assert len(content) == len(expected) > 0
    for mine, over_grpc in zip(content, expected, strict=True):
        assert mine.logprob == pytest.approx(over_grpc.logprob, abs=1e-4)
        assert [top.logprob for top in mine.top_logprobs] == pytest.approx(
            [top.logprob for top in over_grpc.top], abs=1e-4
        )
        assert mine.token == mine.top_logprobs[0].token


async def test_two_prompts_are_two_choices(tiny: System) -> None:
    async with client(tiny) as ask:
        both = await ask.completions.create(
            model=model_name(tiny.model_dir), prompt=["abc", "xyz"], temperature=0, max_tokens=8
        )
        each = [
            await ask.completions.create(
                model=model_name(tiny.model_dir), prompt=prompt, temperature=0, max_tokens=8
            )
            for prompt in ("abc", "xyz")
        ]
    assert [choice.text for choice in both.choices] == [one.choices[0].text for one in each]
    assert [choice.index for choice in both.choices] == [0, 1]
    assert both.usage.completion_tokens == sum(one.usage.completion_tokens for one in each)


async def test_a_stop_string_is_not_in_the_answer(smollm2: System) -> None:
    async with client(smollm2) as ask:
        asked = {"model": model_name(smollm2.model_dir), "messages": QUESTION, "temperature": 0}
        answer = await ask.chat.completions.create(**asked, stop=[" Paris"])
        stream = await ask.chat.completions.create(**asked, stop=" Paris", stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    (choice,) = answer.choices
    assert choice.message.content == "".join(pieces) == "The capital of France is"
    assert choice.finish_reason == "stop"


REFUSED = {
    "a temperature below 0": ({"temperature": -1}, "temperature", "invalid_field"),
    "a misspelt field": ({"extra_body": {"top_kk": 3}}, "top_kk", "invalid_field"),
    "too many choices": ({"n": 129}, "n", "invalid_field"),
    "many log probabilities": (
        {"logprobs": True, "top_logprobs": 21},
        "top_logprobs",
        "invalid_field",
    ),
    "a long prompt": (
        {"messages": [{"role": "user", "content": "x" * MAX_SEQ_LEN}]},
        "messages",
        "context_length_exceeded",
    ),
    "a long answer": ({"max_tokens": MAX_SEQ_LEN}, "max_tokens", "context_length_exceeded"),
    "max_tokens 0": ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_field"),
    "a bias outside the vocabulary": (
        {"logit_bias": {str(VOCAB_SIZE): 1}},
        "logit_bias",
        "token_out_of_vocab",
    ),
    "top_p too small for the wire": ({"top_p": 1e-300}, "top_p", "invalid_field"),
    "a salt too long": ({"extra_body": {"cache_salt": "x" * 257}}, "cache_salt", "invalid_field"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", REFUSED)
async def test_case_8_5_what_cannot_be_is_refused_before_any_byte_of_a_stream(
    name: str, stream: bool, tiny: System
) -> None:
    fields, param, code = REFUSED[name]
    asked = {"model": model_name(tiny.model_dir), "messages": MESSAGES, "stream": stream} | fields
    async with client(tiny) as ask:
        with pytest.raises(openai.BadRequestError) as caught:
            await ask.chat.completions.create(**asked)
    error = caught.value
    assert (error.type, error.param, error.code) == ("invalid_request_error", param, code)
    assert "sampling." not in error.message
    assert "stop." not in error.message


async def test_refusals_disturb_nobody(tiny: System, tiny_dir: Path) -> None:
    async with undisturbed(tiny, tiny_dir), client(tiny) as ask:
        with pytest.raises(openai.NotFoundError) as caught:
            await ask.completions.create(model="gpt-17", prompt="x")
        assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
        with pytest.raises(openai.APIStatusError) as too_large:
            await ask.completions.create(model=model_name(tiny.model_dir), prompt="x" * 70_000)
        assert (too_large.value.status_code, too_large.value.code) == (413, "message_too_large")


async def test_case_8_1_clients_that_leave_give_their_pages_back(
    tiny: System, tiny_dir: Path
) -> None:
    """Case 8.1: in the middle of streams, and of whole answers; running and queued."""
    before = (await tiny.settled()).cancelled_total
    long = {
        "model": model_name(tiny.model_dir),
        "max_tokens": 200,
        "extra_body": {"ignore_eos": True},
    }
    async with client(tiny) as ask:
        streams = await asyncio.gather(
            *(ask.chat.completions.create(messages=MESSAGES, stream=True, **long) for _ in range(8))
        )
        wholes = [
            asyncio.ensure_future(ask.completions.create(prompt="abc", **long)) for _ in range(8)
        ]
        await anext(aiter(streams[0]))
        await until_live(tiny, 16)
        for stream in streams:
            await stream.close()
        for whole in wholes:
            whole.cancel()
        await asyncio.gather(*wholes, return_exceptions=True)
        stats = await tiny.settled()
    assert stats.cancelled_total == before + 16


async def until_live(system: System, count: int) -> None:
    """Return once so many requests run or wait."""
    async with grpc.aio.insecure_channel(system.cache_address) as channel, asyncio.timeout(30):
        stub = cache_pb2_grpc.CacheServiceStub(channel)
        while True:
            stats = await stub.GetStats(cache_pb2.GetStatsRequest())
            if stats.running_requests + stats.waiting_requests == count:
                return


async def test_ready_follows_the_chain_and_a_stream_ends_before_the_process(
    tiny_dir: Path, tmp_path: Path
) -> None:
    with running(System(tiny_dir, tmp_path, num_threads=1)) as system:
        async with client(system) as ask:
            assert await statuses(ask) == (200, 200)
            stream = await ask.completions.create(
                model=model_name(tiny_dir),
                prompt="abc",
                max_tokens=150,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            chunks = [await anext(aiter(stream))]
            system.processes["gateway"].terminate()
            chunks += [chunk async for chunk in stream]
            assert chunks[-1].choices[0].finish_reason == "length"
        assert await asyncio.to_thread(system.processes["gateway"].wait, 30) == 0
        system.kill("cachesvc")
        system.start_one("gateway")
        async with client(system) as ask:
            await until_alive(ask)
            assert await statuses(ask) == (200, 503)
            with pytest.raises(openai.InternalServerError) as caught:
                await ask.completions.create(model=model_name(tiny_dir), prompt="abc")
            assert (caught.value.status_code, caught.value.code) == (503, "chain_not_attached")


async def statuses(ask: AsyncOpenAI) -> tuple[int, int]:
    """Of /health and /ready."""
    codes = []
    for path in ("../health", "../ready"):
        try:
            await ask.get(path, cast_to=object)
            codes.append(200)
        except openai.APIStatusError as error:
            codes.append(error.status_code)
    return codes[0], codes[1]


async def until_alive(ask: AsyncOpenAI) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await ask.get("../health", cast_to=object)
                return
            except openai.APIConnectionError:
                await asyncio.sleep(0.05)


async def test_an_answer_that_fails_in_the_middle_is_an_error_of_the_client(
    tiny_dir: Path, tmp_path: Path
) -> None:
    """The manager dies and none comes within the time that requests wait for one."""
    with running(System(tiny_dir, tmp_path, num_threads=1, max_outage_s=0.5)) as system:
        async with client(system) as ask:
            stream = await ask.completions.create(
                model=model_name(tiny_dir),
                prompt="abc",
                max_tokens=250,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            await anext(aiter(stream))
            system.kill("cachesvc")
            with pytest.raises(openai.APIError) as caught:
                async for _ in stream:
                    pass
    assert (caught.value.type, caught.value.code) == ("server_error", "session_lost")
