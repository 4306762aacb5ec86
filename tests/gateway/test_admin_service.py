"""AdminService where there is no manager; with one, tests/e2e/test_admin.py asks it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from pagewire.v1 import admin_pb2 as pb
from pagewire.v1 import admin_pb2_grpc, cache_pb2, cache_pb2_grpc

from gateway.admin_service import AdminService
from gateway.cache_client import CacheClient
from gateway.intake import Intake
from servicekit.errors import Unavailable
from servicekit.host import ServiceHost
from servicekit.status import error_of
from tests.cachesvc.rpc import channel_to, served, socket_address

PASSED_ON = ("GetStats", "FlushCache", "CheckIntegrity", "Explain", "PageHistory", "RequestPages")


@asynccontextmanager
async def admin() -> AsyncIterator[admin_pb2_grpc.AdminServiceAsyncStub]:
    with socket_address() as nobody:
        client = CacheClient(nobody, "fingerprint", lambda: None)
        public = ServiceHost(nobody, [])
        async with channel_to(nobody) as channel:
            manager = cache_pb2_grpc.CacheServiceStub(channel)
            service = AdminService(client, Intake(), manager, [public])
            add = admin_pb2_grpc.add_AdminServiceServicer_to_server
            async with served(add, service) as address, channel_to(address) as channel:
                yield admin_pb2_grpc.AdminServiceStub(channel)
        await public.stop(0)


async def test_the_load_lacks_the_managers_part() -> None:
    async with admin() as stub:
        watch = stub.WatchLoad(pb.WatchLoadRequest())
        assert await watch.read() == pb.WatchLoadResponse()
        watch.cancel()
        await stub.Drain(pb.DrainRequest())
        watch = stub.WatchLoad(pb.WatchLoadRequest())
        assert await watch.read() == pb.WatchLoadResponse(draining=True)
        watch.cancel()


@pytest.mark.parametrize("rpc", PASSED_ON)
async def test_what_the_manager_would_tell_is_unavailable(rpc: str) -> None:
    async with admin() as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(stub, rpc)(getattr(cache_pb2, f"{rpc}Request")())
    assert isinstance(error_of(caught.value), Unavailable)


def test_all_that_the_manager_can_be_asked_can_be_asked_here() -> None:
    ours = pb.DESCRIPTOR.services_by_name["AdminService"].methods
    theirs = cache_pb2.DESCRIPTOR.services_by_name["CacheService"].methods
    passed_on = {m.name for m in ours if m.input_type.file is cache_pb2.DESCRIPTOR}
    assert passed_on == set(PASSED_ON) == {m.name for m in theirs} - {"Session"}
