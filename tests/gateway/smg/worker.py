"""VllmEngine over a manager that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagewire.v1 import cache_pb2
from smg_grpc_proto import vllm_engine_pb2_grpc

from gateway.answering import Answering
from gateway.cache_client import CacheClient
from gateway.front import Front
from gateway.live_requests import LiveRequests
from gateway.served_model import ServedModel
from gateway.smg.service import VllmEngine
from gateway.tokenizer import Tokenizer
from gateway.totals import Totals
from tests.cachesvc.rpc import channel_to
from tests.cachesvc.rpc import served as serving
from tests.gateway.fake_cache import FakeCache, served
from tests.gateway.front import running

STATS = cache_pb2.GetStatsResponse(
    page_size=4,
    num_pages=10,
    free_pages=3,
    evictable_pages=2,
    locked_pages=4,
    private_pages=1,
    running_requests=3,
    waiting_requests=2,
    cached_tokens_total=30,
    admitted_prompt_tokens_total=120,
)


@dataclass
class Worker:
    """A stub of the service, and the manager behind it, whose session is open."""

    cache: FakeCache
    front: Front
    model_dir: Path
    stub: Any


@asynccontextmanager
async def served_worker(model_dir: Path, socket: Path) -> AsyncIterator[Worker]:
    """The model in `model_dir` is called "tiny"; the manager listens at `socket`."""
    cache, changed = FakeCache(), asyncio.Event()
    tokenizer = Tokenizer.load(model_dir)
    live, totals = LiveRequests(), Totals()

    async def stats() -> cache_pb2.GetStatsResponse:
        return STATS

    async with served(cache, socket) as cache_address:
        client = CacheClient(cache_address, "fingerprint", changed.set)
        front = Front(
            model=ServedModel.read(model_dir, "tiny", tokenizer),
            created_s=1_700_000_000,
            tokenizer=tokenizer,
            chain=client,
            answering=Answering(client, tokenizer, live, totals),
            totals=totals,
        )
        engine = VllmEngine(front, live, model_dir, stats)
        async with running(client):
            await cache.next("open")
            await changed.wait()
            add = vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server
            async with serving(add, engine) as address, channel_to(address) as channel:
                yield Worker(cache, front, model_dir, vllm_engine_pb2_grpc.VllmEngineStub(channel))
