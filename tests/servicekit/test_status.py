"""A failure crosses a process border and is the same failure on the other side."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from servicekit.errors import (
    Cancelled,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PagewireError,
    Reason,
    ResourceExhausted,
    Unavailable,
    error_named,
)
from servicekit.status import StatusInterceptor, duration_of, error_of, seconds_of
from tests.cachesvc.rpc import failure_of

FAILURES = [
    kind(
        Reason.INVALID_FIELD,
        "top_p is 2; it must be at most 1: é, 中文, 👍",
        field="top_p",
        got="2",
    )
    for kind in PagewireError.__subclasses__()
]


class Fails:
    """Raises `failure` from a method of each kind; the streams yield b"first" before that."""

    def __init__(self) -> None:
        self.failure: BaseException = Internal(Reason.INTERNAL, "not set")

    async def unary(self, request: bytes, context: Any) -> bytes:
        raise self.failure

    async def echo(self, request: bytes, context: Any) -> bytes:
        return request

    async def stream(self, request: Any, context: Any) -> AsyncIterator[bytes]:
        yield b"first"
        raise self.failure

    async def foreign(self, request: bytes, context: Any) -> bytes:
        """A status with an ErrorInfo of somebody else."""
        detail = any_pb2.Any()
        detail.Pack(error_details_pb2.ErrorInfo(reason="INVALID_FIELD", domain="elsewhere"))
        await context.abort_with_status(
            rpc_status.to_status(
                status_pb2.Status(code=code_pb2.NOT_FOUND, message="gone", details=[detail])
            )
        )
        raise AssertionError

    async def plain(self, request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the peer is gone")
        raise AssertionError


class Bench:
    def __init__(self, servicer: Fails, channel: grpc.aio.Channel) -> None:
        self.servicer = servicer
        self.channel = channel

    async def unary(self, method: str = "unary", request: bytes = b"") -> bytes:
        return await self.channel.unary_unary(f"/pagewire.test.Fails/{method}")(request)

    async def error(self, method: str = "unary", request: bytes = b"") -> PagewireError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.unary(method, request)
        return error_of(caught.value)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    servicer = Fails()
    unary = {
        name: grpc.unary_unary_rpc_method_handler(getattr(servicer, name), bytes)
        for name in ("unary", "echo", "foreign", "plain")
    }
    streams = {
        "unary_stream": grpc.unary_stream_rpc_method_handler(servicer.stream, bytes),
        "stream_stream": grpc.stream_stream_rpc_method_handler(servicer.stream, bytes),
    }
    async with served(unary | streams, StatusInterceptor(max_message_bytes=100)) as channel:
        yield Bench(servicer, channel)


@asynccontextmanager
async def served(
    handlers: Mapping[str, grpc.RpcMethodHandler], interceptor: StatusInterceptor
) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server(interceptors=[interceptor])
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("pagewire.test.Fails", handlers),)
    )
    with tempfile.TemporaryDirectory(prefix="pw-") as directory:
        address = f"unix:{Path(directory) / 'a.sock'}"
        server.add_insecure_port(address)
        await server.start()
        async with grpc.aio.insecure_channel(address) as channel:
            yield channel
        await server.stop(None)


def same(one: PagewireError, other: PagewireError) -> bool:
    return (type(one), one.reason, one.message, one.metadata) == (
        type(other),
        other.reason,
        other.message,
        other.metadata,
    )


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.code_name)
async def test_a_unary_call_fails_with_code_reason_text_and_metadata(
    bench: Bench, failure: PagewireError
) -> None:
    bench.servicer.failure = failure
    assert same(await bench.error(), failure)


@pytest.mark.parametrize("char", ["m", "é", "👍", "\n"])
async def test_a_failure_of_many_words_keeps_its_code_and_reason(bench: Bench, char: str) -> None:
    """A model's name of 9,000 characters made the status longer than gRPC's metadata may be: its
    caller saw RESOURCE_EXHAUSTED of the transport.
    """
    long = char * 100_000
    bench.servicer.failure = NotFound(
        Reason.MODEL_NOT_FOUND, f"model {long}", field=long, other=long, third=long
    )
    error = await bench.error()
    assert isinstance(error, NotFound)
    assert error.reason is Reason.MODEL_NOT_FOUND
    assert error.message.startswith(f"model {char}")
    assert error.message.endswith(f"{char}…")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bench.unary()
    wire = dict(caught.value.trailing_metadata() or ())
    assert len(quote(error.message)) + 4 / 3 * len(wire["grpc-status-details-bin"]) < 8_000


@pytest.mark.parametrize("method", ["unary_stream", "stream_stream"])
async def test_a_stream_fails_after_what_it_said_before(bench: Bench, method: str) -> None:
    bench.servicer.failure = NotFound(Reason.ROW_NOT_FOUND, "row 9", field="table_idx")
    path = f"/pagewire.test.Fails/{method}"
    if method == "unary_stream":
        call: Any = bench.channel.unary_stream(path)(b"")
    else:
        call = bench.channel.stream_stream(path)()
    assert same(await failure_of(call), bench.servicer.failure)


@pytest.mark.parametrize("retry_after_s", [None, 0.0, 1.5, 1e-6, 86400.0])
async def test_when_to_retry_crosses_the_border_in_a_detail_of_its_own(
    bench: Bench, retry_after_s: float | None
) -> None:
    bench.servicer.failure = ResourceExhausted(
        Reason.QUEUE_FULL, "64 requests wait", retry_after_s=retry_after_s, field="prompt"
    )
    error = await bench.error()
    assert same(error, bench.servicer.failure)
    assert error.retry_after_s == retry_after_s
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bench.unary()
    status = rpc_status.from_call(caught.value)
    assert status is not None
    assert [detail.TypeName() for detail in status.details] == [
        "google.rpc.ErrorInfo",
        *(["google.rpc.RetryInfo"] if retry_after_s is not None else []),
    ]


@pytest.mark.parametrize("seconds", [0.0, 0.25, 3.000001, 1e9])
def test_seconds_are_the_same_as_a_duration(seconds: float) -> None:
    assert seconds_of(duration_of(seconds)) == pytest.approx(seconds, abs=1e-6)


def test_more_seconds_than_a_duration_holds_are_as_many_as_it_holds() -> None:
    assert duration_of(float("inf")).seconds == 315_576_000_000


async def test_a_mistake_of_ours_is_internal_and_says_nothing_of_it(bench: Bench) -> None:
    bench.servicer.failure = KeyError("secret")
    error = await bench.error()
    assert isinstance(error, Internal)
    assert error.reason is Reason.INTERNAL
    assert "secret" not in error.message


async def test_a_call_that_works_is_left_alone(bench: Bench) -> None:
    assert await bench.unary("echo", b"x" * 100) == b"x" * 100


async def test_a_message_over_the_bound_is_refused_with_both_numbers(bench: Bench) -> None:
    error = await bench.error("echo", b"x" * 101)
    assert isinstance(error, ResourceExhausted)
    assert error.reason is Reason.MESSAGE_TOO_LARGE
    assert error.metadata == {"field": "echoRequest"}
    assert "echoRequest has 101 bytes" in error.message
    assert "100" in error.message


@pytest.mark.parametrize("streams", [False, True])
async def test_a_message_that_cannot_be_parsed_is_the_callers_fault(streams: bool) -> None:
    """The fuzz of the public services sent bytes that are no message, and was told INTERNAL, with a
    stack in the log.
    """
    make = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
    handler = make(Fails().stream if streams else Fails().echo, any_pb2.Any.FromString)
    async with served({"Ask": handler}, StatusInterceptor()) as channel:
        path = "/pagewire.test.Fails/Ask"
        for raw in (b"\xff", b"\x0a\x05ab", b"\x0a\x03\xed\xa0\x80"):
            call = (channel.unary_stream if streams else channel.unary_unary)(path)(raw)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await (call.read() if streams else call)
            error = error_of(caught.value)
            assert isinstance(error, InvalidArgument)
            assert error.metadata == {"field": "AskRequest"}
            assert "the message is no AskRequest" in error.message


async def test_a_stream_that_nobody_reads_is_left_and_says_so_when_it_is_read_again() -> None:
    written = 0
    left = asyncio.Event()

    async def endless(request: bytes, context: Any) -> AsyncIterator[bytes]:
        nonlocal written
        try:
            while True:
                yield b"x" * 10_000
                written += 1
        finally:
            left.set()

    interceptor = StatusInterceptor(max_stall_s=0.05)
    async with served(
        {"endless": grpc.unary_stream_rpc_method_handler(endless, bytes)}, interceptor
    ) as channel:
        call = channel.unary_stream("/pagewire.test.Fails/endless")(b"")
        await call.wait_for_connection()
        await left.wait()
        assert written > 0
        error = await failure_of(call)
    assert isinstance(error, Cancelled)
    assert error.reason is Reason.READER_STALLED
    assert "nothing of the answer was read for 0.05 s" in error.message


async def test_a_slow_reader_is_waited_for_without_a_bound() -> None:
    async def some(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 10_000

    async with served(
        {"some": grpc.unary_stream_rpc_method_handler(some, bytes)}, StatusInterceptor()
    ) as channel:
        call = channel.unary_stream("/pagewire.test.Fails/some")(b"")
        await call.wait_for_connection()
        assert sum([len(each) async for each in call]) == 1_000_000


@pytest.mark.parametrize(
    ("method", "kind", "text"),
    [("plain", Unavailable, "the peer is gone"), ("foreign", NotFound, "gone")],
)
async def test_a_status_that_is_not_ours_is_a_lost_session(
    bench: Bench, method: str, kind: type[PagewireError], text: str
) -> None:
    error = await bench.error(method)
    assert type(error) is kind
    assert (error.reason, error.message) == (Reason.SESSION_LOST, text)


async def test_nobody_at_the_address_is_unavailable() -> None:
    async with grpc.aio.insecure_channel("unix:/nowhere/at/all.sock") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/pagewire.test.Fails/echo")(b"")
    error = error_of(caught.value)
    assert isinstance(error, Unavailable)
    assert error.reason is Reason.SESSION_LOST
    assert error.message


def test_each_code_has_one_exception() -> None:
    for failure in FAILURES:
        named = error_named(
            failure.code_name, Reason.INTERNAL, "text", metadata={"field": "x"}, retry_after_s=2
        )
        assert type(named) is type(failure)
        assert named.metadata == {"field": "x"}
        assert named.retry_after_s == 2
    assert len({failure.code_name for failure in FAILURES}) == len(FAILURES)


def test_a_code_that_no_exception_has_is_internal() -> None:
    assert type(error_named("DATA_LOSS", Reason.INTERNAL, "text")) is Internal


def test_the_text_of_an_exception_is_its_message() -> None:
    assert str(InvalidArgument(Reason.EMPTY_PROMPT, "the prompt is empty")) == "the prompt is empty"
    assert FailedPrecondition(Reason.PROTOCOL_VERSION, "no").metadata == {}
