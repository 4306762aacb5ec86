"""RunnerService in numpy: a fake runner behind the real protocol, without torch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from pagewire.v1 import runner_pb2 as pb
from pagewire.v1 import runner_pb2_grpc

from servicekit.errors import PagewireError, Reason, Unavailable
from servicekit.plan import Failed, Plan, Result, RunnerDescription
from servicekit.plan_codec import (
    decode_attach,
    decode_plan,
    encode_attached,
    encode_failed,
    encode_refusal,
    encode_result,
)
from tests.cachesvc.builders import describe
from tests.cachesvc.fake_runner import FakeRunner


class FakeRunnerService(runner_pb2_grpc.RunnerServiceServicer):
    """Executes each plan as it comes, while `gate` is set; `attach_error` refuses every Attach."""

    def __init__(self, runner: RunnerDescription | None = None, boot_id: str = "boot-1") -> None:
        self.runner = FakeRunner(describe() if runner is None else runner, boot_id)
        self.gate = asyncio.Event()
        self.gate.set()
        self.plans: list[Plan] = []  # as read, also those that were refused or dropped
        self.plan_came = asyncio.Event()
        self.num_attaches = 0
        self.attach_error: PagewireError | None = None
        self._cut = asyncio.Event()

    def cut(self) -> None:
        """End the live stream; what was read is executed when the manager attaches again."""
        self._cut.set()

    async def num_plans(self, count: int) -> None:
        """Return when so many plans were read."""
        while len(self.plans) < count:
            self.plan_came.clear()
            await self.plan_came.wait()

    async def Execute(  # noqa: N802 # the RPC's name
        self, request_iterator: AsyncIterator[pb.ExecuteRequest], context: Any
    ) -> AsyncIterator[pb.ExecuteResponse]:
        requests = aiter(request_iterator)
        first = await anext(requests)
        if self.attach_error is not None:
            raise self.attach_error
        self._cut.clear()
        self.num_attaches += 1
        attached, results = self.runner.attach(decode_attach(first.attach))
        yield pb.ExecuteResponse(attached=encode_attached(attached))
        for result in results:
            yield pb.ExecuteResponse(result=encode_result(result))
        reader = asyncio.create_task(self._read(requests))
        try:
            while not (reader.done() or self._cut.is_set()):
                await _first_of(reader, self.plan_ready(), self._cut.wait())
                while self.gate.is_set() and not self._cut.is_set() and not self.runner.idle:
                    yield self._answer()
        finally:
            reader.cancel()
        raise Unavailable(Reason.DRAINING, "the fake runner ended the stream")

    async def plan_ready(self) -> None:
        """Return when there is something to execute and the gate is open."""
        while self.runner.idle:
            self.plan_came.clear()
            await self.plan_came.wait()
        await self.gate.wait()

    async def _read(self, requests: AsyncIterator[pb.ExecuteRequest]) -> None:
        async for request in requests:
            plan = decode_plan(request.plan)
            self.plans.append(plan)
            self.runner.take(plan)
            self.plan_came.set()

    def _answer(self) -> pb.ExecuteResponse:
        answer = self.runner.execute_one()
        if isinstance(answer, Result):
            return pb.ExecuteResponse(result=encode_result(answer))
        if isinstance(answer, Failed):
            return pb.ExecuteResponse(failed=encode_failed(answer))
        assert answer is not None
        return pb.ExecuteResponse(refusal=encode_refusal(answer))


async def _first_of(reader: asyncio.Task[None], *waits: Any) -> None:
    """Return when the reader or one of `waits` is over; the other waits are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait((reader, *tasks), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
