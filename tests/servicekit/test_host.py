"""The server that each service runs in: its address, its health, its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2 as health
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from pagewire.v1 import cache_pb2 as pb
from pagewire.v1 import cache_pb2_grpc

from servicekit.errors import SetupError
from servicekit.health_check import is_serving
from servicekit.host import ServiceHost
from servicekit.tls import Tls
from tests.servicekit.certificates import write_certificates

NAME = "pagewire.v1.CacheService"
SERVING = health.HealthCheckResponse.SERVING
NOT_SERVING = health.HealthCheckResponse.NOT_SERVING


class Slow(cache_pb2_grpc.CacheServiceServicer):
    """GetStats answers when the test lets it."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.gate = asyncio.Event()

    async def GetStats(self, request: Any, context: Any) -> pb.GetStatsResponse:  # noqa: N802
        self.called.set()
        await self.gate.wait()
        return pb.GetStatsResponse(num_pages=7)


class OneStopAtATime:
    """A server that fails when it is told to stop while it stops."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._stopping = False
        self.num_stops = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    async def stop(self, grace_s: float) -> None:
        assert not self._stopping
        self._stopping = True
        self.num_stops += 1
        try:
            await self._server.stop(grace_s)
        finally:
            self._stopping = False


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pw-") as path:
        yield Path(path)


@pytest.fixture
async def host(directory: Path) -> AsyncIterator[ServiceHost]:
    made = ServiceHost(f"unix:{directory / 'a.sock'}", [NAME])
    yield made
    await made.stop(0)


async def health_of(host: ServiceHost, service: str = NAME) -> int:
    async with grpc.aio.insecure_channel(host.listen) as channel:
        request = health.HealthCheckRequest(service=service)
        return (await health_pb2_grpc.HealthStub(channel).Check(request)).status


async def test_health_is_not_serving_until_told_otherwise(host: ServiceHost) -> None:
    await host.start()
    assert await health_of(host) == NOT_SERVING
    assert not await asyncio.to_thread(is_serving, host.listen)
    await host.set_serving(serving=True)
    assert await health_of(host) == await health_of(host, "") == SERVING
    assert await asyncio.to_thread(is_serving, host.listen)
    await host.set_serving(serving=False)
    assert await health_of(host) == NOT_SERVING


async def test_reflection_lists_the_service_and_health(host: ServiceHost) -> None:
    await host.start()
    async with grpc.aio.insecure_channel(host.listen) as channel:
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        await call.done_writing()
    listed = [service.name for service in answer.list_services_response.service]
    assert NAME in listed
    assert "grpc.health.v1.Health" in listed


async def test_stop_leaves_no_file_and_may_be_called_again(
    host: ServiceHost, directory: Path
) -> None:
    await host.start()
    assert (directory / "a.sock").is_socket()
    await host.stop(0)
    assert list(directory.iterdir()) == []  # noqa: ASYNC240 # nothing else runs
    await host.stop(0)


async def test_a_socket_in_use_is_refused_and_its_owner_goes_on(host: ServiceHost) -> None:
    await host.start()
    second = ServiceHost(host.listen, [NAME])
    with pytest.raises(SetupError, match="is in use by another process"):
        await second.start()
    await second.stop(0)
    assert await health_of(host) == NOT_SERVING


async def test_a_port_in_use_is_refused_by_its_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        host = ServiceHost(address, [NAME])
        with pytest.raises(SetupError, match=f"address {address} cannot be bound"):
            await host.start()
        await host.stop(0)


async def test_a_path_longer_than_unix_allows_is_refused(directory: Path) -> None:
    host = ServiceHost(f"unix:{directory / ('x' * 120)}", [NAME])
    with pytest.raises(SetupError, match="longer than the 107 bytes"):
        await host.start()
    await host.stop(0)


async def test_a_directory_that_cannot_be_made_is_refused_by_its_path(directory: Path) -> None:
    """It was a NotADirectoryError with its traceback."""
    (directory / "file").touch()
    host = ServiceHost(f"unix:{directory / 'file' / 'a.sock'}", [NAME])
    with pytest.raises(SetupError, match=str(directory / "file" / "a.sock")):
        await host.start()
    await host.stop(0)


async def test_with_tls_only_who_trusts_the_certificate_is_answered(directory: Path) -> None:
    write_certificates(directory)
    tls = Tls.read(str(directory / "server.cert"), str(directory / "server.key"), None)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    host = ServiceHost(address, [NAME], tls=tls)
    await host.start()
    trusting = grpc.ssl_channel_credentials((directory / "ca").read_bytes())
    async with grpc.aio.secure_channel(address, trusting) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        assert (await stub.Check(health.HealthCheckRequest())).status == NOT_SERVING
    assert not await asyncio.to_thread(is_serving, address)
    for credentials in (grpc.ssl_channel_credentials(), None):
        channel = (
            grpc.aio.insecure_channel(address)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials)
        )
        async with channel:
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await health_pb2_grpc.HealthStub(channel).Check(health.HealthCheckRequest())
    await host.stop(0)


class TestASignal:
    async def test_sigterm_begins_the_drain(self, host: ServiceHost) -> None:
        await host.start()
        await host.set_serving(serving=True)
        os.kill(os.getpid(), signal.SIGTERM)
        await host.wait_for_stop()
        assert host._draining
        assert await health_of(host) == NOT_SERVING
        await host.set_serving(serving=True)
        assert await health_of(host) == NOT_SERVING, "for good"

    async def test_a_call_in_flight_ends_within_the_grace(self, host: ServiceHost) -> None:
        slow = Slow()
        cache_pb2_grpc.add_CacheServiceServicer_to_server(slow, host.grpc_server)
        await host.start()
        async with grpc.aio.insecure_channel(host.listen) as channel:
            call = cache_pb2_grpc.CacheServiceStub(channel).GetStats(pb.GetStatsRequest())
            await slow.called.wait()
            stopping = asyncio.create_task(host.stop(60))
            slow.gate.set()
            assert (await call).num_pages == 7
            await stopping

    async def test_whoever_watches_health_is_told_and_holds_nothing_up(
        self, host: ServiceHost
    ) -> None:
        await host.start()
        await host.set_serving(serving=True)
        async with grpc.aio.insecure_channel(host.listen) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health.HealthCheckRequest())
            assert (await watch.read()).status == SERVING
            await host.drain()
            assert (await watch.read()).status == NOT_SERVING
            await asyncio.wait_for(host.stop(3600), 20)
            assert (await watch.read()).status == NOT_SERVING
            assert await watch.read() is grpc.aio.EOF

    async def test_a_second_signal_ends_the_grace(self, host: ServiceHost) -> None:
        slow = Slow()
        cache_pb2_grpc.add_CacheServiceServicer_to_server(slow, host.grpc_server)
        await host.start()
        async with grpc.aio.insecure_channel(host.listen) as channel:
            call = cache_pb2_grpc.CacheServiceStub(channel).GetStats(pb.GetStatsRequest())
            await slow.called.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            await host.wait_for_stop()
            stopping = asyncio.create_task(host.stop(3600))
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(stopping, 20)
            with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
                await call

    async def test_a_second_signal_never_makes_two_stops_at_once(self, host: ServiceHost) -> None:
        """The one that came second sometimes cancelled the calls of a server that was gone: the
        process ended with SIGSEGV.
        """
        host.grpc_server = one_stop = OneStopAtATime(host.grpc_server)
        await host.start()
        for number in (signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), number)
        await host.wait_for_stop()
        await host.stop(3600)
        assert one_stop.num_stops >= 1

    async def test_a_second_signal_ends_any_wait_within_the_grace(self, host: ServiceHost) -> None:
        await host.start()
        os.kill(os.getpid(), signal.SIGTERM)
        await host.wait_for_stop()
        never = asyncio.ensure_future(asyncio.Event().wait())
        waiting = asyncio.create_task(host.within_grace(never, 3600))
        os.kill(os.getpid(), signal.SIGINT)
        assert await asyncio.wait_for(waiting, 20) is False
        never.cancel()

    async def test_calls_are_told_before_they_are_ended(self, host: ServiceHost) -> None:
        slow = Slow()
        cache_pb2_grpc.add_CacheServiceServicer_to_server(slow, host.grpc_server)
        await host.start()
        async with grpc.aio.insecure_channel(host.listen) as channel:
            call = cache_pb2_grpc.CacheServiceStub(channel).GetStats(pb.GetStatsRequest())
            await slow.called.wait()
            await host.stop(0, slow.gate.set)
            assert (await call).num_pages == 7

    async def test_the_end_of_the_parent_is_two_signals(
        self, host: ServiceHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second was nobody's to send: streams had the whole grace period."""
        monkeypatch.setattr("servicekit.host.PARENT_GONE_GRACE_S", 0.01)
        parent_fd, own_fd = os.pipe()
        await host.start(parent_fd)
        os.close(own_fd)
        await host.wait_for_stop()
        never = asyncio.ensure_future(asyncio.Event().wait())
        assert await asyncio.wait_for(host.within_grace(never, 3600), 20) is False
        never.cancel()
        os.close(parent_fd)

    async def test_what_ends_within_the_grace_is_told(self, host: ServiceHost) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        assert await host.within_grace(done, 3600)
