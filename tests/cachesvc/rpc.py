"""A servicer behind a real server on a Unix socket, and a channel to it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from servicekit.errors import PagewireError
from servicekit.status import StatusInterceptor, error_of


@asynccontextmanager
async def served(add: Callable[[Any, grpc.aio.Server], None], servicer: Any) -> AsyncIterator[str]:
    """The address of `servicer`, added to a server by `add` as generated."""
    with tempfile.TemporaryDirectory(prefix="pw-") as directory:  # short: a path has 107 bytes
        address = f"unix:{Path(directory) / 'service.sock'}"
        server = grpc.aio.server(interceptors=[StatusInterceptor()])
        add(servicer, server)
        server.add_insecure_port(address)
        await server.start()
        try:
            yield address
        finally:
            await server.stop(None)


def channel_to(address: str) -> grpc.aio.Channel:
    """A connection that is not shared with any other."""
    return grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


async def failure_of(call: Any) -> PagewireError:
    """What the server ends a stream with."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error_of(error)
    raise AssertionError(f"the stream ended well: {await call.code()}")
