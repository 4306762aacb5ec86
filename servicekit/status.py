"""Failures as gRPC statuses with one `google.rpc.ErrorInfo`, and a `RetryInfo` where a retry may
work; and back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from typing import Any, NoReturn

import grpc
import structlog
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from servicekit.errors import (
    Internal,
    InvalidArgument,
    PagewireError,
    Reason,
    ResourceExhausted,
    error_named,
)
from servicekit.quoting import shortened_bytes
from servicekit.reader_patience import reader_patience

DOMAIN = "pagewire"
MAX_DURATION_S = 315_576_000_000  # what google.protobuf.Duration holds: 10,000 years
# Of the text and of each value beside it. A status goes as metadata, where a byte may cost four,
# and what is over 8 KiB there may end as a RESOURCE_EXHAUSTED of the transport.
MAX_TEXT_BYTES, MAX_VALUE_BYTES = 1_024, 512
log = structlog.get_logger()


async def abort(context: Any, error: PagewireError) -> NoReturn:
    """End the call with `error`'s code, text, ErrorInfo and, if it knows when to retry,
    RetryInfo. What is long of them is cut.
    """
    values = {
        name: shortened_bytes(value, MAX_VALUE_BYTES) for name, value in error.metadata.items()
    }
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=values)
    ]
    if error.retry_after_s is not None:
        delay = duration_of(error.retry_after_s)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(
        code=code_pb2.Code.Value(error.code_name),
        message=shortened_bytes(error.message, MAX_TEXT_BYTES),
        details=[_packed(detail) for detail in details],
    )
    await context.abort_with_status(rpc_status.to_status(status))
    raise AssertionError("abort_with_status returned")


def error_of(failure: grpc.aio.AioRpcError) -> PagewireError:
    """The exception that the other side reported; a status without ErrorInfo (the peer is gone) is
    SESSION_LOST.
    """
    return reported_by(failure) or error_named(
        failure.code().name, Reason.SESSION_LOST, words_of(failure)
    )


def words_of(failure: grpc.aio.AioRpcError) -> str:
    return failure.details() or failure.code().name


def reported_by(failure: grpc.aio.AioRpcError) -> PagewireError | None:
    """The exception that the other side reported; None for a status without ErrorInfo."""
    status = rpc_status.from_call(failure)
    details = [] if status is None else list(status.details)
    for detail in details:
        found = error_details_pb2.ErrorInfo()
        if detail.Unpack(found) and found.domain == DOMAIN and found.reason in Reason.__members__:
            return error_named(
                failure.code().name,
                Reason(found.reason),
                words_of(failure),
                metadata=found.metadata,
                retry_after_s=_retry_after_s(details),
            )
    return None


def duration_of(seconds: float) -> Duration:
    """As the wire has it, to the microsecond. `seconds` is not negative."""
    micros = round(min(seconds, MAX_DURATION_S) * 1_000_000)
    return Duration(seconds=micros // 1_000_000, nanos=micros % 1_000_000 * 1_000)


def seconds_of(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def _retry_after_s(details: Iterable[any_pb2.Any]) -> float | None:
    for detail in details:
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            return seconds_of(retry.retry_delay)
    return None


def _packed(detail: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Turns what a handler raises into a status, parses unary requests, bounds their length, and
    how long a stream waits for a reader that takes nothing of it.

    The first two are done here and not by the transport, whose own refusals carry no ErrorInfo.
    """

    def __init__(
        self, max_message_bytes: int | None = None, max_stall_s: float | None = None
    ) -> None:
        self._max_message_bytes = max_message_bytes
        self._max_stall_s = max_stall_s

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith("/grpc."):
            return handler
        rpc = handler_call_details.method.rpartition("/")[2]
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._streaming(rpc, handler.stream_stream, None),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._streaming(rpc, handler.unary_stream, handler.request_deserializer),
                response_serializer=handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            self._unary(rpc, handler.unary_unary, handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )

    def _unary(self, rpc: str, behave: Any, deserialize: Any) -> Any:
        async def call(raw: bytes, context: Any) -> Any:
            try:
                return await behave(self._parse(rpc, raw, deserialize), context)
            except PagewireError as error:
                await abort(context, error)
            except Exception as error:  # noqa: BLE001 # the last resort of a request: logged, then INTERNAL
                await abort(context, _internal(error))

        return call

    def _streaming(self, rpc: str, behave: Any, deserialize: Any) -> Any:
        async def call(request: Any, context: Any) -> None:
            try:
                if deserialize is not None:
                    request = self._parse(rpc, request, deserialize)
                async with (
                    reader_patience(self._max_stall_s) as patience,
                    aclosing(behave(request, context)) as responses,
                ):
                    async for response in responses:
                        await patience.taken(context.write(response))
            except PagewireError as error:
                with suppress(grpc.aio.InternalError):  # a reader that stalled may be gone for good
                    await abort(context, error)
            except Exception as error:  # noqa: BLE001 # as above
                await abort(context, _internal(error))

        return call

    def _parse(self, rpc: str, raw: bytes, deserialize: Any) -> Any:
        name = f"{rpc}Request"
        if self._max_message_bytes is not None and len(raw) > self._max_message_bytes:
            raise ResourceExhausted(
                Reason.MESSAGE_TOO_LARGE,
                f"{name} has {len(raw)} bytes, more than max_message_bytes "
                f"{self._max_message_bytes}: send a shorter one",
                field=name,
            )
        try:
            return deserialize(raw)
        except DecodeError:
            raise InvalidArgument(
                Reason.INVALID_FIELD,
                f"the message is no {name}: send what its .proto file says, all texts in UTF-8",
                field=name,
            ) from None


def _internal(error: Exception) -> Internal:
    log.error("request failed", exc_info=error)
    return Internal(Reason.INTERNAL, "the request failed inside the server; its log says why")
