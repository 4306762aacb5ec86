"""A gateway's end of a Session, that remembers what it heard."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from pagewire.v1 import cache_pb2 as pb
from pagewire.v1 import cache_pb2_grpc

PATIENCE_S = 20  # until a test that waits in vain fails


class Gateway:
    """One session. `until` reads on until what the test waits for has come."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call: Any = cache_pb2_grpc.CacheServiceStub(channel).Session()
        self.opened: list[pb.Opened] = []
        self.accepted: list[int] = []
        self.cached_tokens: dict[int, int] = {}
        self.rejected: dict[int, pb.Rejected] = {}
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.finished: dict[int, pb.RequestFinished] = {}
        self.messages: list[pb.SessionResponse] = []

    async def open(self, protocol_version: int = 1, model_fingerprint: str = "tiny") -> None:
        await self.send(
            open=pb.Open(protocol_version=protocol_version, model_fingerprint=model_fingerprint)
        )

    async def submit(
        self,
        key: int,
        prompt: Sequence[int] = (1, 2, 3),
        *,
        stop: Sequence[int] = (),
        sampling: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        given = pb.Submit(
            key=key, request_id=f"request-{key}", prompt_ids=prompt, stop_token_ids=stop, **fields
        )
        for name, value in ({"seed": key} | (sampling or {})).items():
            setattr(given.sampling, name, value)
        await self.send(submit=given)

    async def send(self, **command: Any) -> None:
        await self.call.write(pb.SessionRequest(**command))

    async def until(self, holds: Callable[[Gateway], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds(self):
                await self.hear()

    async def until_finished(self, *keys: int) -> None:
        await self.until(lambda _: all(key in self.finished for key in keys))

    async def hear(self) -> None:
        """Take one message in."""
        message = await self.call.read()
        assert message is not grpc.aio.EOF, "the session ended"
        self.messages.append(message)
        if message.HasField("opened"):
            self.opened.append(message.opened)
        self.accepted += [accepted.key for accepted in message.accepted]
        for admitted in message.admitted:
            assert admitted.key not in self.cached_tokens, "admitted first twice"
            self.cached_tokens[admitted.key] = admitted.cached_tokens
        for rejected in message.rejected:
            self.rejected[rejected.key] = rejected
        for key, token_id in zip(
            message.step_output.keys, message.step_output.token_ids, strict=True
        ):
            assert key not in self.finished, "a token after the end"
            self.tokens[key].append(token_id)
        for ended in message.finished:
            assert ended.key not in self.finished, "two ends of one request"
            self.finished[ended.key] = ended
