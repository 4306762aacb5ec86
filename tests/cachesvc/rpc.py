"""A servicer behind a real server on a Unix socket, and a channel to it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc

from servicekit.errors import PagewireError
from servicekit.status import StatusInterceptor, error_of


@contextmanager
def socket_address() -> Iterator[str]:
    """An address nobody listens on yet; its path is short, as Unix allows 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="pw-") as directory:
        yield f"unix:{Path(directory) / 'service.sock'}"


@asynccontextmanager
async def served_at(
    address: str,
    add: Callable[[Any, grpc.aio.Server], None],
    servicer: Any,
    max_stall_s: float | None = None,
) -> AsyncIterator[None]:
    """`servicer` behind a server at `address`, added to it by `add` as generated."""
    server = grpc.aio.server(interceptors=[StatusInterceptor(max_stall_s=max_stall_s)])
    add(servicer, server)
    server.add_insecure_port(address)
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


@asynccontextmanager
async def served(
    add: Callable[[Any, grpc.aio.Server], None], servicer: Any, max_stall_s: float | None = None
) -> AsyncIterator[str]:
    """The address of `servicer`."""
    with socket_address() as address:
        async with served_at(address, add, servicer, max_stall_s):
            yield address


def channel_to(address: str) -> grpc.aio.Channel:
    """A connection that is not shared with any other, for answers of any length, which holds little
    that is not read.
    """
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.http2.bdp_probe", 0),
    ]
    return grpc.aio.insecure_channel(address, options=options)


async def failure_of(call: Any) -> PagewireError:
    """What the server ends a stream with."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error_of(error)
    raise AssertionError(f"the stream ended well: {await call.code()}")
