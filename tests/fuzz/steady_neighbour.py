"""A client that asks the same again and again beside bad input, and must always hear the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from tests.e2e.system import System, greedy, ids_of

PROMPT_IDS = list(range(30, 60))
NUM_TOKENS = 64


@dataclass
class Heard:
    answers: int = 0
    others: int = 0  # that were not the first one: after one it asks no more


@asynccontextmanager
async def steady_neighbour(system: System) -> AsyncIterator[Heard]:
    """Asks as long as the context lasts; an answer under way ends first."""
    heard, over = Heard(), asyncio.Event()
    async with system.client() as stub:
        request = greedy(PROMPT_IDS, NUM_TOKENS)
        request.sampling.seed = 11
        expected = await ids_of(stub.Generate(request))
        assert len(expected) == NUM_TOKENS

        async def ask_on() -> None:
            while not over.is_set() and not heard.others:
                try:
                    heard.others += await ids_of(stub.Generate(request)) != expected
                except grpc.aio.AioRpcError:
                    heard.others += 1
                heard.answers += 1

        asking = asyncio.create_task(ask_on())
        try:
            yield heard
        finally:
            over.set()
            await asking
