"""The protocol's RPCs for which Pagewire has nothing, or has its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NoReturn

from smg_grpc_proto import vllm_engine_pb2_grpc

from servicekit.errors import Reason, Unimplemented


class NotServed(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc] # it has no types
    """Each ends with UNIMPLEMENTED, which the router takes for an answer."""

    async def Embed(self, request: Any, context: Any) -> NoReturn:  # noqa: N802 # the RPC's name
        _refuse("Embed", "the model that is served makes text")

    async def FlushCache(  # noqa: N802 # the RPC's name
        self, request: Any, context: Any
    ) -> NoReturn:
        _refuse("FlushCache", "call pagewire.v1.AdminService/FlushCache at --admin")

    async def StartProfile(  # noqa: N802 # the RPC's name
        self, request: Any, context: Any
    ) -> NoReturn:
        _refuse("StartProfile", "profile runnersvc from outside")

    async def StopProfile(  # noqa: N802 # the RPC's name
        self, request: Any, context: Any
    ) -> NoReturn:
        _refuse("StopProfile", "nothing is profiled")

    async def SubscribeKvEvents(  # noqa: N802 # the RPC's name
        self, request: Any, context: Any
    ) -> AsyncIterator[Any]:
        _refuse("SubscribeKvEvents", "the router goes by what it sent where")
        yield  # it streams


def _refuse(rpc: str, why: str) -> NoReturn:
    raise Unimplemented(Reason.NOT_SERVED, f"{rpc} is not served: {why}")
