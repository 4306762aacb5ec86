"""A small client of the public service and of GetStats, for the command."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple

import grpc
from pagewire.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2

from gateway.answer_figures import Answered
from gateway.connection import Connection
from gateway.stats_client import manager_stats


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt, and how to continue it; None leaves a parameter to the server."""

    text: str
    chat: bool
    max_tokens: int | None
    temperature: float | None
    seed: int | None


async def ask(connection: Connection, question: Question) -> AsyncIterator[str | Answered]:
    """Texts as they come, then Answered.

    Errors: the PagewireError that the server reports; FatalError when it is not reached.
    """
    sampling = sampling_pb2.SamplingParams(temperature=question.temperature, seed=question.seed)
    stop = inference_pb2.StopParams(max_tokens=question.max_tokens)
    async with connection.channel() as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        try:
            if question.chat:
                message = inference_pb2.ChatMessage(role="user", content=question.text)
                asked = inference_pb2.ChatRequest(messages=[message], sampling=sampling, stop=stop)
                async for reply in stub.Chat(asked, metadata=connection.metadata):
                    yield _told(reply)
            else:
                request = inference_pb2.GenerateRequest(
                    text=question.text, sampling=sampling, stop=stop
                )
                async for response in stub.Generate(request, metadata=connection.metadata):
                    yield _told(response)
        except grpc.aio.AioRpcError as failure:
            raise connection.error_of(failure) from failure


def _told(response: inference_pb2.ChatResponse | inference_pb2.GenerateResponse) -> str | Answered:
    return answered(response.finished) if response.HasField("finished") else response.delta.text


def answered(finished: inference_pb2.Finished) -> Answered:
    return Answered(
        finished.usage.prompt_tokens,
        finished.usage.completion_tokens,
        is_cut=finished.reason == inference_pb2.FINISH_REASON_LENGTH,
    )


class PageCounts(NamedTuple):
    """Pages of a pool."""

    num_pages: int
    evictable_pages: int  # cached for whoever asks the same
    max_used_pages: int  # in use at once, at most


async def page_counts(cache_address: str) -> PageCounts:
    """The pages of the manager at `cache_address`. Errors: the PagewireError that it reports."""
    stats = await manager_stats(cache_address)
    return PageCounts(stats.num_pages, stats.evictable_pages, stats.max_used_pages)
