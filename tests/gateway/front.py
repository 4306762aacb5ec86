"""The public services over a manager that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from pagewire.v1 import cache_pb2, inference_pb2_grpc, model_pb2_grpc

from gateway.answering import Answering
from gateway.cache_client import CacheClient
from gateway.intake import Intake
from gateway.live_requests import LiveRequests
from gateway.model_service import ModelService
from gateway.served_model import ServedModel
from gateway.service import InferenceService
from gateway.tokenizer import Tokenizer
from gateway.totals import Totals
from tests.cachesvc.rpc import channel_to
from tests.cachesvc.rpc import served as serving
from tests.gateway.fake_cache import FakeCache, served

CREATED_S = 1_700_000_000


@dataclass
class Front:
    """Stubs of the services, and the manager behind them, whose session is open."""

    cache: FakeCache
    tokenizer: Tokenizer
    totals: Totals
    stub: inference_pb2_grpc.InferenceServiceAsyncStub
    models: model_pb2_grpc.ModelServiceAsyncStub


@asynccontextmanager
async def served_front(
    model_dir: Path,
    socket: Path,
    intake: Intake | None = None,
    *,
    max_stall_s: float | None = None,
) -> AsyncIterator[Front]:
    """The services of the model in `model_dir`, called "tiny"; the manager listens at `socket`."""
    cache, changed = FakeCache(), asyncio.Event()
    tokenizer = Tokenizer.load(model_dir)
    async with served(cache, socket) as cache_address:
        client = CacheClient(cache_address, "fingerprint", changed.set)
        async with running(client):
            await cache.next("open")
            await changed.wait()
            live, totals = LiveRequests(), Totals()
            answering = Answering(client, tokenizer, live, totals, intake)
            servicers = (
                InferenceService(answering, tokenizer, "tiny", live, totals),
                ModelService(client, ServedModel.read(model_dir, "tiny", tokenizer), CREATED_S),
            )
            async with (
                serving(add, servicers, max_stall_s) as address,
                channel_to(address) as channel,
            ):
                yield Front(
                    cache,
                    tokenizer,
                    totals,
                    inference_pb2_grpc.InferenceServiceStub(channel),
                    model_pb2_grpc.ModelServiceStub(channel),
                )


def add(servicers: tuple[InferenceService, ModelService], server: grpc.aio.Server) -> None:
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicers[0], server)
    model_pb2_grpc.add_ModelServiceServicer_to_server(servicers[1], server)


@asynccontextmanager
async def running(client: CacheClient) -> AsyncIterator[None]:
    task = asyncio.create_task(client.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def accepted(key: int) -> cache_pb2.SessionResponse:
    return cache_pb2.SessionResponse(accepted=[cache_pb2.Accepted(key=key)])
