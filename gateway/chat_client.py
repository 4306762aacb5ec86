"""Answers of a chat over gRPC, which go on by themselves when the server is lost."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import grpc
from pagewire.v1 import inference_pb2 as pb
from pagewire.v1 import inference_pb2_grpc, sampling_pb2

from gateway.chat_shell import ChatEvent, Lost, Turn
from gateway.connection import Connection
from gateway.inference_client import answered
from servicekit.errors import FailedPrecondition, FatalError, PagewireError, Reason

FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 1.0
FIRST_TRIES = 6  # of a server that has answered nothing yet; 1.6 s of waits


@dataclass(frozen=True, slots=True)
class ChatParams:
    """How answers are to be; "" and None leave a parameter to the server."""

    model: str = ""
    max_tokens: int | None = None
    temperature: float | None = None


class ChatClient:
    """Asks for one answer after the other.

    A server that is UNAVAILABLE is asked again, after waits that grow, by the same request with the
    ids that came so far: without end once it answered, or for whoever `is_patient`.
    """

    def __init__(
        self,
        connection: Connection,
        params: ChatParams,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        *,
        is_patient: bool = False,
    ) -> None:
        """Each try has a channel of its own: one that failed would wait before it connects."""
        self._connection = connection
        self._params = params
        self._sleep = sleep
        self._tries_left = math.inf if is_patient else FIRST_TRIES

    async def answer(self, turns: Sequence[Turn], seed: int) -> AsyncGenerator[ChatEvent, None]:
        """Texts as they come, Lost for each try that failed, then Answered. Whoever leaves early
        cancels the request. Errors: the PagewireError that the server reports; FatalError when it
        is not reached.
        """
        params = self._params
        request = pb.ChatRequest(
            model=params.model,
            messages=[pb.ChatMessage(role=role, content=text) for role, text in turns],
            sampling=sampling_pb2.SamplingParams(temperature=params.temperature, seed=seed),
            stop=pb.StopParams(max_tokens=params.max_tokens),
        )
        received, wait_s = _Received(), FIRST_RETRY_S
        while True:
            request.resume_token_ids[:] = received.token_ids
            try:
                async with self._connection.channel() as channel:
                    stub = inference_pb2_grpc.InferenceServiceStub(channel)
                    chat = stub.Chat(request, metadata=self._connection.metadata)
                    async for response in chat:
                        wait_s, self._tries_left = FIRST_RETRY_S, math.inf
                        if text := received.take(response):
                            yield text
                        if response.HasField("finished"):
                            yield answered(response.finished)
                            return
                lost: PagewireError | FatalError = FatalError(
                    f"the server at {self._connection.address} ended the stream before the answer"
                )
            except grpc.aio.AioRpcError as failure:
                lost = self._connection.error_of(failure)
                if failure.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise lost from failure
            self._tries_left -= 1
            if self._tries_left <= 0:
                raise lost
            yield Lost(str(lost))
            await self._sleep(wait_s)
            wait_s = min(wait_s * 2, LONGEST_RETRY_S)


class _Received:
    """What of an answer came, over all tries."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._text = ""
        self._next_char = 0  # where in the text the next delta begins

    def take(self, response: pb.ChatResponse) -> str:
        """The text that is new. Errors: FailedPrecondition when the answer is another one."""
        if response.HasField("started"):
            resumed_text = response.started.resumed_text
            if not self._text.startswith(resumed_text):
                raise FailedPrecondition(
                    Reason.FINGERPRINT_MISMATCH,
                    "the server that came back serves another model: ask again",
                )
            self._next_char = len(resumed_text)
        delta = response.delta
        new = delta.text[len(self._text) - self._next_char :]
        self._next_char += len(delta.text)
        self._text += new
        self.token_ids += delta.token_ids
        return new
