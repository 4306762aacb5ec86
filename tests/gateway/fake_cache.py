"""A CacheService that answers with chosen tokens: the real protocol on a real socket, no pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from pagewire.v1 import cache_pb2 as pb
from pagewire.v1 import cache_pb2_grpc

from servicekit.errors import FailedPrecondition, Reason
from servicekit.status import StatusInterceptor


class FakeCache(cache_pb2_grpc.CacheServiceServicer):
    """Hands what gateways send to `commands`, and sends what is put into `responses`, after
    `first`.
    """

    def __init__(self) -> None:
        self.commands: asyncio.Queue[pb.SessionRequest] = asyncio.Queue()
        self.responses: asyncio.Queue[pb.SessionResponse | None] = asyncio.Queue()  # None: end
        self.refused = False
        self.first = opened(serving=True)

    async def Session(  # noqa: N802 # the RPC's name
        self, request_iterator: AsyncIterator[pb.SessionRequest], context: object
    ) -> AsyncIterator[pb.SessionResponse]:
        if self.refused:
            raise FailedPrecondition(Reason.FINGERPRINT_MISMATCH, "another model")

        async def read() -> None:
            async for request in request_iterator:
                self.commands.put_nowait(request)

        reader = asyncio.create_task(read())
        try:
            yield self.first
            while (response := await self._next_response()) is not None:
                yield response
        finally:
            reader.cancel()

    async def _next_response(self) -> pb.SessionResponse | None:
        """A manager says something each second."""
        try:
            return await asyncio.wait_for(self.responses.get(), 1)
        except TimeoutError:
            return pb.SessionResponse(load=pb.Load())

    async def next(self, kind: str):
        """The next command, which is of this kind."""
        request = await asyncio.wait_for(self.commands.get(), 10)
        assert request.WhichOneof("command") == kind
        return getattr(request, kind)


def opened(*, serving: bool) -> pb.SessionResponse:
    limits = pb.Limits(max_seq_len=64, vocab_size=100, pool_tokens=64)
    return pb.SessionResponse(opened=pb.Opened(serving=serving, limits=limits))


def tokens(key: int, *token_ids: int, sent_at_us: int = 0) -> pb.SessionResponse:
    output = pb.StepOutput(keys=[key] * len(token_ids), token_ids=token_ids, sent_at_us=sent_at_us)
    return pb.SessionResponse(step_output=output)


def likely(key: int, *token_ids: int, top: int) -> pb.SessionResponse:
    """Tokens with the log probabilities of so many likeliest ones."""
    one = pb.TokenLogprobs(key=key, chosen=-2.5, top_ids=range(top), top=[-1.5] * top)
    output = pb.StepOutput(
        keys=[key] * len(token_ids), token_ids=token_ids, logprobs=[one] * len(token_ids)
    )
    return pb.SessionResponse(step_output=output)


def finished(key: int, cause: pb.FinishCause.ValueType) -> pb.SessionResponse:
    return pb.SessionResponse(finished=[pb.RequestFinished(key=key, cause=cause)])


@asynccontextmanager
async def served(cache: FakeCache, socket: Path) -> AsyncIterator[str]:
    """The address of `cache` while it is served."""
    server = grpc.aio.server(interceptors=[StatusInterceptor()])
    cache_pb2_grpc.add_CacheServiceServicer_to_server(cache, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield f"unix:{socket}"
    finally:
        await server.stop(0)
