"""The public service over a manager that the test plays: what of a call reaches it, and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from pagewire.v1 import cache_pb2, inference_pb2_grpc
from pagewire.v1 import inference_pb2 as pb

from gateway.cache_client import CacheClient
from gateway.service import InferenceService
from servicekit.errors import DeadlineExceeded, Reason, ResourceExhausted
from servicekit.status import error_of
from tests.cachesvc.rpc import channel_to
from tests.cachesvc.rpc import served as serving
from tests.gateway.fake_cache import FakeCache, finished, served, tokens
from tests.gateway.tiny_tokenizers import load_tiny

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
QUESTION = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5, 6]))


@dataclass
class Front:
    cache: FakeCache
    stub: inference_pb2_grpc.InferenceServiceAsyncStub


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    cache, changed = FakeCache(), asyncio.Event()
    tokenizer = load_tiny(tmp_path / "tokenizer", "byte_level")
    async with served(cache, tmp_path / "c") as cache_address:
        client = CacheClient(cache_address, "fingerprint", changed.set)
        async with running(client):
            await cache.next("open")
            await changed.wait()
            service = InferenceService(client, tokenizer, "tiny")
            add = inference_pb2_grpc.add_InferenceServiceServicer_to_server
            async with serving(add, service) as address, channel_to(address) as channel:
                yield Front(cache, inference_pb2_grpc.InferenceServiceStub(channel))


@asynccontextmanager
async def running(client: CacheClient) -> AsyncIterator[None]:
    task = asyncio.create_task(client.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def accepted(key: int) -> cache_pb2.SessionResponse:
    return cache_pb2.SessionResponse(accepted=[cache_pb2.Accepted(key=key)])


async def test_deadline_and_trace_context_of_the_caller_reach_the_manager(front: Front) -> None:
    call = front.stub.Generate(QUESTION, timeout=100, metadata=[("traceparent", TRACEPARENT)])
    submit = await front.cache.next("submit")
    assert submit.traceparent == TRACEPARENT
    assert 90 < submit.remaining.ToTimedelta().total_seconds() < 102  # gRPC rounds up
    call.cancel()
    assert (await front.cache.next("cancel")).key == submit.key


@pytest.mark.parametrize("metadata", [[], [("traceparent", "00-none")]])
async def test_a_caller_without_either_has_neither(
    front: Front, metadata: list[tuple[str, str]]
) -> None:
    call = front.stub.Generate(QUESTION, metadata=metadata)
    submit = await front.cache.next("submit")
    assert not submit.HasField("remaining")
    assert submit.traceparent == ""
    call.cancel()


@pytest.mark.parametrize("in_one_message", [True, False])
async def test_what_the_cache_had_of_the_prompt_is_in_the_usage(
    front: Front, in_one_message: bool
) -> None:
    call = front.stub.Generate(QUESTION)
    submit = await front.cache.next("submit")
    admitted = cache_pb2.Admitted(key=submit.key, cached_tokens=1)
    messages = [
        accepted(submit.key),
        cache_pb2.SessionResponse(admitted=[admitted]),
        tokens(submit.key, 7),
        finished(submit.key, cache_pb2.FINISH_CAUSE_MAX_TOKENS),
    ]
    if in_one_message:
        merged = cache_pb2.SessionResponse()
        for message in messages:
            merged.MergeFrom(message)
        messages = [merged]
    for message in messages:
        front.cache.responses.put_nowait(message)
    last = [response async for response in call][-1]
    assert last.finished.usage == pb.Usage(prompt_tokens=2, completion_tokens=1, cached_tokens=1)


async def test_a_full_queue_tells_the_caller_when_to_come_again(front: Front) -> None:
    call = front.stub.Generate(QUESTION)
    submit = await front.cache.next("submit")
    rejected = cache_pb2.Rejected(
        key=submit.key,
        code="RESOURCE_EXHAUSTED",
        reason="QUEUE_FULL",
        message="64 requests wait",
        retry_after=Duration(seconds=1, nanos=500_000_000),
    )
    front.cache.responses.put_nowait(cache_pb2.SessionResponse(rejected=[rejected]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    error = error_of(caught.value)
    assert isinstance(error, ResourceExhausted)
    assert (error.reason, error.retry_after_s) == (Reason.QUEUE_FULL, 1.5)


async def test_a_request_whose_time_is_over_while_it_waits_is_a_deadline(front: Front) -> None:
    call = front.stub.Generate(QUESTION, timeout=100)
    submit = await front.cache.next("submit")
    front.cache.responses.put_nowait(accepted(submit.key))
    failure = cache_pb2.Rejected(
        key=submit.key,
        code="DEADLINE_EXCEEDED",
        reason="DEADLINE_EXCEEDED",
        message="it waited 100 s",
    )
    ended = cache_pb2.RequestFinished(
        key=submit.key, cause=cache_pb2.FINISH_CAUSE_FAILED, failure=failure
    )
    front.cache.responses.put_nowait(cache_pb2.SessionResponse(finished=[ended]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    error = error_of(caught.value)
    assert isinstance(error, DeadlineExceeded)
    assert (error.reason, error.retry_after_s) == (Reason.DEADLINE_EXCEEDED, None)
