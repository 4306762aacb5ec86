"""The port of AdminService: for this machine alone, without keys and TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from pagewire.v1 import admin_pb2_grpc, cache_pb2_grpc

from gateway.admin_service import AdminService
from gateway.cache_client import CacheClient
from gateway.config import GatewayConfig
from gateway.intake import Intake
from servicekit.host import ServiceHost

SERVICE_NAME = "pagewire.v1.AdminService"


@asynccontextmanager
async def admin_port(
    config: GatewayConfig, client: CacheClient, intake: Intake, public: ServiceHost
) -> AsyncIterator[list[ServiceHost]]:
    """Serves it, if it has an address, while the context lasts: longer than `public`, so that one
    can watch that drain. Gives the hosts whose health is the gateway's, `public` first.

    Errors: SetupError when the address is taken.
    """
    if config.admin is None:
        yield [public]
        return
    host = ServiceHost(config.admin, [SERVICE_NAME], config.max_message_bytes)
    hosts = [public, host]
    async with grpc.aio.insecure_channel(config.cache) as channel:
        manager = cache_pb2_grpc.CacheServiceStub(channel)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(
            AdminService(client, intake, manager, hosts), host.grpc_server
        )
        await host.open()
        try:
            yield hosts
        finally:
            await host.stop(0)
