"""API keys of gRPC calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from gateway.api_keys import ApiKeys
from gateway.totals import Totals
from servicekit.errors import Unauthenticated
from servicekit.status import abort

OPEN = ("/grpc.health.v1.", "/grpc.reflection.")  # to whoever asks


class KeyInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without a key before anything of their messages is read, and counts them under
    the RPC.
    """

    def __init__(self, keys: ApiKeys, totals: Totals) -> None:
        self._keys = keys
        self._totals = totals

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith(OPEN):
            return handler
        try:
            self._keys.check(_authorization(handler_call_details))
        except Unauthenticated as error:
            self._totals.requests[method.rpartition("/")[2], error.code_name] += 1
            return _refusing(error)
        return handler


def _authorization(details: grpc.HandlerCallDetails) -> str | None:
    for name, value in details.invocation_metadata or ():
        if name == "authorization":
            return value if isinstance(value, str) else value.decode(errors="replace")
    return None


def _refusing(error: Unauthenticated) -> Any:
    """A handler for calls of every kind."""

    async def refuse(requests: Any, context: Any) -> AsyncIterator[bytes]:
        await abort(context, error)
        yield b""

    return grpc.stream_stream_rpc_method_handler(refuse)
