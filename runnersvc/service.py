"""RunnerService: decodes, calls the runner, encodes. A reader feeds it, its answers are written as
they come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from pagewire.v1 import runner_pb2 as pb
from pagewire.v1 import runner_pb2_grpc

from runnersvc.executor import Answer
from runnersvc.runner import Runner
from servicekit.arith import table_width
from servicekit.errors import InvalidArgument, NotFound, Reason, Unavailable
from servicekit.plan import Failed, Refusal, Result
from servicekit.plan_codec import (
    decode_attach,
    decode_plan,
    encode_attached,
    encode_failed,
    encode_refusal,
    encode_result,
)


class RunnerService(runner_pb2_grpc.RunnerServiceServicer):
    """Serves once `load` gave it a runner; before that every call is UNAVAILABLE."""

    def __init__(self) -> None:
        self._runner: Runner | None = None
        self._reader: asyncio.Task[None] | None = None
        self._draining = False
        self._no_stream = asyncio.Event()
        self._no_stream.set()

    def load(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def runner(self) -> Runner | None:
        """None while the model loads."""
        return self._runner

    async def ended(self) -> None:
        """Take no new stream, and return when there is none."""
        self._draining = True
        await self._no_stream.wait()

    async def drain(self) -> None:
        """Execute what was accepted, then end the live stream."""
        self._draining = True
        if self._reader is not None:
            self._reader.cancel()

    async def Execute(  # noqa: N802 # the RPC's name
        self, request_iterator: AsyncIterator[pb.ExecuteRequest], context: Any
    ) -> AsyncIterator[pb.ExecuteResponse]:
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        runner = self._ready_runner()
        if first is None or first.WhichOneof("request") != "attach":
            raise InvalidArgument(
                Reason.PROTOCOL_VIOLATION, "the first message must be attach", field="attach"
            )
        answers: asyncio.Queue[Answer | None] = asyncio.Queue()  # None: no more will come
        attached, results = await runner.attach(decode_attach(first.attach), answers.put_nowait)
        self._no_stream.clear()
        try:
            yield pb.ExecuteResponse(attached=encode_attached(attached))
            for result in results:
                yield _response(result)
            self._reader = asyncio.create_task(self._read(runner, requests, answers))
            while (answer := await answers.get()) is not None:
                yield _response(answer)
                if isinstance(answer, Failed):
                    return  # a status of failure could overtake the answer
            if self._draining:
                raise Unavailable(Reason.DRAINING, "the runner is draining: attach to another one")
            await self._reader  # raises what a bad message raised
        finally:
            runner.detach()
            self._no_stream.set()
            if self._reader is not None:
                self._reader.cancel()
                self._reader = None

    async def ReadPageTable(  # noqa: N802 # the RPC's name
        self, request: pb.ReadPageTableRequest, context: Any
    ) -> pb.ReadPageTableResponse:
        runner = self._ready_runner()
        description = runner.description
        num_rows = description.num_rows + 1  # the dummy row is last
        width = table_width(description.max_seq_len, description.page_size)
        if not 0 <= request.table_idx < num_rows:
            raise NotFound(
                Reason.ROW_NOT_FOUND,
                f"table_idx is {request.table_idx}; rows go from 0 to {num_rows - 1}",
                field="table_idx",
            )
        end = request.start + request.num_positions if request.HasField("num_positions") else width
        if not 0 <= request.start <= end <= width:
            raise InvalidArgument(
                Reason.INVALID_FIELD,
                f"positions {request.start} to {end} are not within 0 to {width}",
                field="start",
            )
        locs, last_executed = await runner.read_locs(request.table_idx, request.start, end)
        return pb.ReadPageTableResponse(locs=locs, last_executed=last_executed)

    def _ready_runner(self) -> Runner:
        if self._draining:
            raise Unavailable(Reason.DRAINING, "the runner is draining: attach to another one")
        if self._runner is None:
            raise Unavailable(
                Reason.CHAIN_NOT_ATTACHED,
                "the runner is still loading the model: try again when health is SERVING",
            )
        if self._runner.failed.is_set():
            raise Unavailable(
                Reason.CHAIN_NOT_ATTACHED,
                "the runner ends after a plan that failed: attach to the next one",
            )
        return self._runner

    async def _read(
        self,
        runner: Runner,
        requests: AsyncIterator[pb.ExecuteRequest],
        answers: asyncio.Queue[Answer | None],
    ) -> None:
        try:
            async for request in requests:
                if request.WhichOneof("request") != "plan":
                    raise InvalidArgument(
                        Reason.PROTOCOL_VIOLATION, "after attach only plans may come", field="plan"
                    )
                runner.take(decode_plan(request.plan))
            await runner.drained()
        except asyncio.CancelledError:
            if not self._draining:
                raise
            await runner.drained()  # what was accepted is answered before the stream ends
        finally:
            answers.put_nowait(None)


def _response(answer: Answer) -> pb.ExecuteResponse:
    if isinstance(answer, Result):
        return pb.ExecuteResponse(result=encode_result(answer))
    if isinstance(answer, Refusal):
        return pb.ExecuteResponse(refusal=encode_refusal(answer))
    return pb.ExecuteResponse(failed=encode_failed(answer))
