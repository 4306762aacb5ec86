"""A runner service behind a real server, with a model that can be held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from pagewire.v1 import runner_pb2 as pb
from pagewire.v1 import runner_pb2_grpc

from runnersvc.runner import Runner
from runnersvc.service import RunnerService
from servicekit.errors import Reason
from servicekit.plan import Plan
from servicekit.plan_codec import encode_plan
from servicekit.status import error_of
from tests.cachesvc.builders import describe
from tests.cachesvc.rpc import channel_to, served
from tests.runnersvc.gated_memory import GatedMemory


class WatchedRunner(Runner):
    """Tells which plans its reader has taken."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._taken: asyncio.Queue[int] = asyncio.Queue()

    def take(self, plan: Plan) -> None:
        super().take(plan)
        self._taken.put_nowait(plan.plan_id)

    async def accepted(self, plan_id: int) -> int:
        """Wait until this plan was taken; the plan accepted last."""
        while await self._taken.get() != plan_id:
            pass
        return self._books.last_plan_id


class Bench:
    """A runner service with a model that can be held, and a channel to it."""

    def __init__(self, address: str, service: RunnerService) -> None:
        self.service = service
        self.memory = GatedMemory(describe())
        self.runner = WatchedRunner(self.memory, describe())
        self.channel = channel_to(address)
        self.stub = runner_pb2_grpc.RunnerServiceStub(self.channel)

    async def execute(self, **attach: Any) -> Any:
        """A stream whose first message is Attach."""
        call = self.stub.Execute()
        fields = {"protocol_version": 1, "manager_id": "manager-1", **attach}
        await call.write(pb.ExecuteRequest(attach=pb.Attach(**fields)))
        return call

    async def attached(self, **attach: Any) -> Any:
        """A live stream; Attached is read. Waits until the former one is noticed to be over."""
        while True:
            call = await self.execute(**attach)
            try:
                answer = await call.read()
            except grpc.aio.AioRpcError as error:
                if error_of(error).reason is Reason.STREAM_ALREADY_LIVE:
                    continue
                raise
            assert answer.WhichOneof("response") == "attached"
            call.answer = answer.attached
            return call


async def send(call: Any, *plans: Plan) -> None:
    for one in plans:
        await call.write(pb.ExecuteRequest(plan=encode_plan(one)))


async def results(call: Any, count: int) -> list[tuple[int, list[int]]]:
    answers = [await call.read() for _ in range(count)]
    assert [answer.WhichOneof("response") for answer in answers] == ["result"] * count
    return [(answer.result.plan_id, list(answer.result.sampled_ids)) for answer in answers]


@asynccontextmanager
async def serving_bench() -> AsyncIterator[Bench]:
    service = RunnerService()
    async with served(runner_pb2_grpc.add_RunnerServiceServicer_to_server, service) as address:
        made = Bench(address, service)
        service.load(made.runner)
        try:
            yield made
        finally:
            made.memory.gate.set()
            await made.channel.close()
    made.runner.stop()
