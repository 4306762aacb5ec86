"""The clients: each sends one request after the other to its gateway, and goes on by itself when
that gateway dies, as `pagewire chat` does.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import grpc
from pagewire.v1 import inference_pb2 as pb
from pagewire.v1 import inference_pb2_grpc

from servicekit.errors import Reason
from servicekit.status import reported_by
from tests.chaos.heard import Heard, SeamError
from tests.chaos.pool import Use

HANGS_AFTER_S = 180.0  # without an end that long is lost
FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 0.4
CHANNEL_OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]


@dataclass
class Door:
    """A gateway as clients see it; `deaths` of it excuse a stream that ended UNAVAILABLE."""

    name: str
    address: str
    deaths: int = 0
    is_up: bool = True


@dataclass
class Load:
    """`live` are the requests under way, by the number of their use."""

    doors: Sequence[Door]
    live: dict[int, tuple[Door, Use, Heard]] = field(default_factory=dict)
    turned_away: Counter[str] = field(default_factory=Counter)  # before they started; sent again
    resumed: int = 0

    async def ask_one_after_the_other(
        self,
        num_clients: int,
        next_use: Callable[[], Use | None],
        judge: Callable[[Use, Heard], None],
    ) -> None:
        """All clients at once, as many at each door, until there is no next use."""

        async def ask_on(door: Door) -> None:
            while (use := next_use()) is not None:
                judge(use, await self.ask(door, use))

        clients = [ask_on(self.doors[nth % len(self.doors)]) for nth in range(num_clients)]
        await asyncio.gather(*clients)

    async def ask(self, door: Door, use: Use) -> Heard:
        """One request to its end, or to that of its client's patience."""
        heard = Heard(use.asked.num_choices)
        self.live[use.number] = (door, use, heard)
        try:
            async with asyncio.timeout(HANGS_AFTER_S):
                await self._ask_on(door, use, heard)
        except TimeoutError:
            heard.failure = f"no end after {HANGS_AFTER_S} s, {heard.num_tokens} tokens"
        finally:
            heard.ended_s = time.time()
            del self.live[use.number]
        return heard

    async def _ask_on(self, door: Door, use: Use, heard: Heard) -> None:
        wait_s = FIRST_RETRY_S
        while True:
            num_tokens = heard.num_tokens
            if await self._try(door, use, heard) or heard.failure:
                return
            if heard.num_tokens > num_tokens:
                wait_s = FIRST_RETRY_S
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_RETRY_S)

    async def _try(self, door: Door, use: Use, heard: Heard) -> bool:
        """Returns whether the client is done with it; else it tries again, or `failure` is set."""
        deaths, was_up = door.deaths, door.is_up
        request = pb.GenerateRequest()
        request.CopyFrom(use.asked.request)
        request.cache_salt = use.cache_salt
        resumed_ids = list(heard.begin_try())
        request.resume_token_ids[:] = resumed_ids
        try:
            async with grpc.aio.insecure_channel(door.address, CHANNEL_OPTIONS) as channel:
                call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)
                async for response in call:
                    heard.take(response)
                    self.resumed += response.HasField("started") and bool(resumed_ids)
                    if use.leaves_after is not None and heard.num_tokens >= use.leaves_after:
                        call.cancel()
                        return True
        except grpc.aio.AioRpcError as error:
            if heard.finished:  # the gateway died between the end of the answer and its status
                return True
            self._take_error(error, heard, excused=door.deaths != deaths or not was_up)
            return False
        except SeamError as seam:
            heard.failure = str(seam)
            return False
        if not heard.finished:
            heard.failure = "the stream ended before the answer"
        return heard.finished

    def _take_error(self, error: grpc.aio.AioRpcError, heard: Heard, *, excused: bool) -> None:
        reported = reported_by(error)
        reason = None if reported is None else reported.reason
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            if not heard.started and reason is Reason.CHAIN_NOT_ATTACHED:
                self.turned_away["of a gateway that was killed" if excused else "other"] += 1
                return
            if excused:
                return
        heard.failure = f"{error.code().name} {reason}: {error.details()}"

    def prefilling(self) -> bool:
        """Whether a request that the manager took has no token yet."""
        return any(heard.started and not heard.num_tokens for _, _, heard in self.live.values())
