"""Answers that are under way over gRPC and as server-sent events, and how each ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import httpx2
from pagewire.v1 import inference_pb2_grpc

from servicekit.status import reported_by
from tests.e2e.system import greedy

NUM_EACH = 3
MAX_TOKENS = 4000  # more than any test waits for


class OpenStreams:
    """NUM_EACH of each kind."""

    def __init__(self, calls: list, responses: list[httpx2.Response]) -> None:
        self._calls = calls
        self._lines = [response.aiter_lines() for response in responses]

    async def begun(self) -> None:
        """Return when each has said something."""
        for call in self._calls:
            await call.read()
            assert (await call.read()).HasField("delta")
        for lines in self._lines:
            async for line in lines:
                if line.startswith("data: "):
                    break

    async def ends(self) -> list[str]:
        """The reason that each ends with, in words of ErrorInfo."""
        return await asyncio.gather(
            *map(_end_of_call, self._calls), *map(_end_of_events, self._lines)
        )


async def _end_of_call(call) -> str:
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        reported = reported_by(error)
        return f"without a reason: {error}" if reported is None else reported.reason
    return "FINISHED"


async def _end_of_events(lines: AsyncIterator[str]) -> str:
    last = [line async for line in lines if line][-2:]
    if last[-1] == "data: [DONE]":
        return "FINISHED"
    assert last[0] == "event: error"
    return json.loads(last[1].removeprefix("data: "))["error"]["code"].upper()


@asynccontextmanager
async def open_streams(address: str, http_address: str) -> AsyncIterator[OpenStreams]:
    """Streams that have begun, each with a connection of its own."""
    body = {"model": "", "prompt": "hello", "max_tokens": MAX_TOKENS, "stream": True}
    async with AsyncExitStack() as opened:
        calls, responses = [], []
        http = await opened.enter_async_context(
            httpx2.AsyncClient(base_url=f"http://{http_address}", timeout=None)
        )
        models = (await http.get("/v1/models")).json()["data"]
        body["model"] = models[0]["id"]
        for nth in range(NUM_EACH):
            channel = await opened.enter_async_context(
                grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
            )
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            calls.append(stub.Generate(greedy([1, 2, nth], MAX_TOKENS)))
            streaming = http.stream("POST", "/v1/completions", json={**body, "seed": nth})
            responses.append(await opened.enter_async_context(streaming))
        streams = OpenStreams(calls, responses)
        await streams.begun()
        yield streams
