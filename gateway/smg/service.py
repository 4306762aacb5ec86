"""VllmEngine: decodes, calls, encodes. Tokens out; the router makes text of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from pagewire.v1 import cache_pb2
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from gateway.bounds import MAX_CANCELLED_IDS, check_count
from gateway.front import Front
from gateway.generation import GenerationRequest
from gateway.live_requests import LiveRequests
from gateway.smg.about import about_model, about_server
from gateway.smg.answers import Answer
from gateway.smg.archive import archive_of, chunks_of
from gateway.smg.loads import loads_of
from gateway.smg.not_served import NotServed
from gateway.smg.requests import generation_request
from gateway.smg.served_fields import check_fields
from gateway.stats_client import manager_stats
from gateway.traceparent import traceparent_of
from servicekit.errors import Cancelled

LOADS_FIELDS = frozenset({"include"})  # sections: there is one


class VllmEngine(NotServed):
    """The router's worker, over one model."""

    def __init__(
        self,
        front: Front,
        live: LiveRequests,
        model_dir: Path,
        stats: Callable[[], Awaitable[cache_pb2.GetStatsResponse]],
    ) -> None:
        """`stats` asks the manager for its own."""
        self._front = front
        self._live = live
        self._model_dir = model_dir
        self._stats = stats

    async def Generate(  # noqa: N802 # the RPC's name
        self, request: pb.GenerateRequest, context: Any
    ) -> AsyncIterator[pb.GenerateResponse]:
        front, answer = self._front, Answer(streamed=request.stream)
        make = partial(self._generation_request, request, context)
        try:
            with front.totals.request("VllmEngine/Generate"):
                async with aclosing(front.answering.events_of(request.request_id, make)) as events:
                    async for event in events:
                        if (response := answer.take(event)) is not None:
                            yield response
        except Cancelled:  # by name: who calls is still there
            yield answer.aborted()

    async def _generation_request(
        self, request: pb.GenerateRequest, context: Any, request_id: str
    ) -> GenerationRequest:
        return await generation_request(
            request,
            request_id,
            self._front.tokenizer,
            remaining_s=context.time_remaining(),
            traceparent=traceparent_of(context.invocation_metadata() or ()),
        )

    async def Abort(  # noqa: N802 # the RPC's name
        self, request: pb.AbortRequest, context: Any
    ) -> pb.AbortResponse:
        check_count("request_ids", len(request.request_ids), MAX_CANCELLED_IDS)
        self._live.cancel(request.request_ids)
        return pb.AbortResponse()

    async def HealthCheck(  # noqa: N802 # the RPC's name
        self, request: pb.HealthCheckRequest, context: Any
    ) -> pb.HealthCheckResponse:
        serving = self._front.chain.serving
        why = "" if serving else "cachesvc or a runner is not there"
        return pb.HealthCheckResponse(healthy=serving, message=why)

    async def GetModelInfo(  # noqa: N802 # glossary: the RPC's name
        self, request: pb.GetModelInfoRequest, context: Any
    ) -> pb.GetModelInfoResponse:
        return about_model(self._front)

    async def GetServerInfo(  # noqa: N802 # glossary: the RPC's name
        self, request: pb.GetServerInfoRequest, context: Any
    ) -> pb.GetServerInfoResponse:
        return about_server(self._front, time.time() - self._front.created_s)

    async def GetLoads(  # noqa: N802 # the RPC's name
        self, request: pb.GetLoadsRequest, context: Any
    ) -> pb.GetLoadsResponse:
        check_fields(request, LOADS_FIELDS)
        return loads_of(await self._stats(), datetime.now(UTC))

    async def GetTokenizer(  # noqa: N802 # the RPC's name
        self, request: common_pb2.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[common_pb2.GetTokenizerChunk]:
        for chunk in chunks_of(await asyncio.to_thread(archive_of, self._model_dir)):
            yield chunk


def add_engine(
    server: grpc.aio.Server, front: Front, live: LiveRequests, model_dir: Path, cache: str
) -> None:
    """To a server that is not started yet; `cache` is the manager's address."""
    engine = VllmEngine(front, live, model_dir, partial(manager_stats, cache))
    vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(engine, server)
