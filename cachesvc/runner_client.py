"""The Execute stream to the runner: attaches, sends plans as credits allow, hands answers to the
core, attaches again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import structlog
from pagewire.v1 import runner_pb2 as pb

from cachesvc.core import Core
from cachesvc.plan_stream import ProtocolViolationError
from servicekit.client import Ended, keep_up, stream_channel
from servicekit.errors import PagewireError, Reason
from servicekit.plan_codec import (
    decode_attached,
    decode_failed,
    decode_refusal,
    decode_result,
    encode_attach,
)
from servicekit.plan_twin import plan_request
from servicekit.recording import RecordingWriter
from servicekit.status import error_of

log = structlog.get_logger()


class RunnerClient:
    """Drives `core` against the runner at `address`. `on_change` is called after whatever may have
    made outputs or changed serving.
    """

    def __init__(self, address: str, core: Core, on_change: Callable[[], None]) -> None:
        self._core = core
        self._on_change = on_change
        self._work = asyncio.Event()
        self._sending = asyncio.Lock()
        self._writer: RecordingWriter | None = None
        self._channel = stream_channel(address)
        self._execute: Any = (
            self._channel.stream_stream(  # as the stub does, for a message and its twin
                "/pagewire.v1.RunnerService/Execute",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=pb.ExecuteResponse.FromString,
            )
        )

    def record_to(self, writer: RecordingWriter) -> None:
        """Write all that is sent and received there from now on, each plan once."""
        self._writer = writer

    def wake(self) -> None:
        """There may be something to plan."""
        self._work.set()

    async def run(self) -> None:
        """Attach, again and again, until cancelled."""
        try:
            await keep_up(self._attached_once, "runner not attached")
        finally:
            await self._channel.close()

    async def _attached_once(self) -> Ended:
        attached_before = self._core.totals.attached
        why = await self._one_stream()
        self._core.lost(why)
        self._on_change()
        return Ended(self._core.totals.attached > attached_before, why)

    async def _one_stream(self) -> str:
        """One Execute call from Attach to its end. Returns why it ended."""
        call = self._execute()
        try:
            await call.write(pb.ExecuteRequest(attach=encode_attach(self._core.attach_request())))
            answer: Any = await anext(aiter(call), None)
            if answer is None or answer.WhichOneof("response") != "attached":
                return "the runner ended the stream before it attached"
            resend = self._core.attached(decode_attached(answer.attached))
            if self._writer is not None:
                self._writer.attached(answer.attached)
            for plan in resend:
                await call.write(plan_request(plan))
            self._on_change()
            return await self._drive(call)
        except grpc.aio.AioRpcError as error:
            failure = error_of(error)
            if failure.reason is Reason.DRAINING:
                self._core.runner_drained()
            return failure.message
        except asyncio.InvalidStateError:  # grpc.aio: written to after the call ended
            return "the runner ended the stream"
        except (PagewireError, ProtocolViolationError) as error:
            log.error("runner refused by the manager", error=str(error))
            return str(error)
        finally:
            call.cancel()

    async def _drive(self, call: Any) -> str:
        """Send and read until either ends; what one raises ends both. Returns why it ended."""
        self.wake()
        reader = asyncio.create_task(self._read_answers(call))
        sender = asyncio.create_task(self._send_plans(call))
        try:
            await asyncio.wait((reader, sender), return_when=asyncio.FIRST_COMPLETED)
            if not reader.done():
                await sender
            return await reader
        finally:
            reader.cancel()
            sender.cancel()
            await asyncio.gather(reader, sender, return_exceptions=True)

    async def _send_plans(self, call: Any) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            await self._send_due(call)
            self._on_change()

    async def _send_due(self, call: Any) -> None:
        """Send what may be sent now, in order, whoever asks for it."""
        async with self._sending:
            while (plan := self._core.next_plan()) is not None:
                if self._writer is not None:
                    self._writer.plan(plan)
                try:
                    await call.write(plan_request(plan))
                except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
                    return  # the call ended: the reader finds why, after what came before

    async def _read_answers(self, call: Any) -> str:
        async for answer in call:  # `read` of a call that ended would drop what is not read yet
            kind = answer.WhichOneof("response")
            if self._writer is not None and kind in ("result", "refusal", "failed"):
                getattr(self._writer, kind)(getattr(answer, kind))
            if kind == "result":
                self._core.result(decode_result(answer.result))
                if not self._sending.locked():  # before anything else: the device waits for it
                    await self._send_due(call)
            elif kind == "refusal":
                self._core.refused(decode_refusal(answer.refusal))
            elif kind == "failed":
                self._core.runner_failed(decode_failed(answer.failed))
                return f"plan {answer.failed.plan_id} failed in the runner"
            else:
                raise ProtocolViolationError(
                    f"an ExecuteResponse with {kind} in the middle of a stream"
                )
            self.wake()
            self._on_change()
        return "the runner ended the stream"
