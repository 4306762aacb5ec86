"""The load: one session with cachesvc, as a gateway has it, that submits whole workloads."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import grpc
import numpy as np
from pagewire.v1 import cache_pb2 as pb
from pagewire.v1 import cache_pb2_grpc

from bench.gpu.workloads import TEMPERATURE, Workload
from bench.processes import BenchError
from servicekit.host import GIL_SWITCH_INTERVAL_S
from servicekit.plan import PROTOCOL_VERSION

RUN_TIMEOUT_S = 300.0


class Run(NamedTuple):
    """A workload, served. Times are of `time.monotonic`."""

    submitted_s: float  # the first request
    finished_s: float  # the last one
    cached_tokens: int  # found in the prefix cache

    @property
    def seconds(self) -> float:
        return self.finished_s - self.submitted_s


class Client:
    """A session that is open from `open` until the channel closes. One workload at a time."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        sys.setswitchinterval(GIL_SWITCH_INTERVAL_S)  # as in the gateway
        self._stub = cache_pb2_grpc.CacheServiceStub(channel)
        self._call: Any = self._stub.Session()
        self._next_key = 1

    async def open(self) -> None:
        await self._call.write(pb.SessionRequest(open=pb.Open(protocol_version=PROTOCOL_VERSION)))

    async def flush(self) -> None:
        """Empty the prefix cache."""
        await self._stub.FlushCache(pb.FlushCacheRequest())

    async def run(self, workload: Workload) -> Run:
        """Submit all of it together, and return when the last request has finished.

        Errors: BenchError when one is rejected, ends otherwise than by its length, or has another
        number of tokens; when it takes RUN_TIMEOUT_S.
        """
        await self._settled()
        first_key = self._next_key
        self._next_key += len(workload.requests)
        messages = _submits(workload, first_key)
        answers = _Answers(workload, first_key)
        began_s = time.monotonic()
        writing = asyncio.create_task(self._write(messages))
        try:
            async with asyncio.timeout(RUN_TIMEOUT_S):
                while answers.unfinished:
                    message = await self._call.read()
                    if message is grpc.aio.EOF:
                        raise BenchError("the session ended")
                    answers.take(message)
        except TimeoutError:
            raise BenchError(
                f"{workload.name}: {answers.unfinished} requests have not finished in "
                f"{RUN_TIMEOUT_S:.0f} s"
            ) from None
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        ended_s = time.monotonic()
        answers.check()
        return Run(began_s, ended_s, answers.cached_tokens)

    async def _write(self, messages: Sequence[pb.SessionRequest]) -> None:
        for message in messages:
            await self._call.write(message)

    async def _settled(self) -> None:
        """Nothing runs, and no plan is on its way."""
        while True:
            stats = await self._stub.GetStats(pb.GetStatsRequest())
            if (
                stats.running_requests + stats.waiting_requests == 0
                and stats.last_plan_id == stats.last_result_plan_id
            ):
                return
            await asyncio.sleep(0.01)


class _Answers:
    """Counts what the session hears of one workload's requests."""

    def __init__(self, workload: Workload, first_key: int) -> None:
        self.unfinished = len(workload.requests)
        self.cached_tokens = 0
        self._workload = workload
        self._first_key = first_key
        self._num_tokens = np.zeros(self.unfinished, dtype=np.int64)

    def take(self, message: pb.SessionResponse) -> None:
        """Errors: BenchError."""
        for rejected in message.rejected:
            raise BenchError(f"{self._workload.name}: rejected: {rejected.message}")
        self.cached_tokens += sum(admitted.cached_tokens for admitted in message.admitted)
        nths = np.array(message.step_output.keys, dtype=np.int64) - self._first_key
        self._num_tokens += np.bincount(nths, minlength=len(self._num_tokens))
        for finished in message.finished:
            if finished.cause != pb.FINISH_CAUSE_MAX_TOKENS:
                cause = pb.FinishCause.Name(finished.cause)
                raise BenchError(
                    f"{self._workload.name}: a request ended with {cause} "
                    f"{finished.failure.message}"
                )
            self.unfinished -= 1

    def check(self) -> None:
        """Errors: BenchError."""
        for nth, request in enumerate(self._workload.requests):
            if self._num_tokens[nth] != request.max_tokens:
                raise BenchError(
                    f"{self._workload.name}: request {nth} has {self._num_tokens[nth]} tokens, "
                    f"{request.max_tokens} were due"
                )


def _submits(workload: Workload, first_key: int) -> list[pb.SessionRequest]:
    messages = []
    for key, request in enumerate(workload.requests, start=first_key):
        submit = pb.Submit(
            key=key,
            request_id=f"{workload.name}-{key}",
            prompt_ids=request.prompt_ids,
            max_tokens=request.max_tokens,
        )
        submit.sampling.temperature = TEMPERATURE
        submit.sampling.seed = key
        messages.append(pb.SessionRequest(submit=submit))
    return messages
