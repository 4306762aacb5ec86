"""The OpenAI surface over a manager that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from gateway.answering import Answering
from gateway.api_keys import ApiKeys
from gateway.cache_client import CacheClient
from gateway.front import Front
from gateway.http.app import create_app
from gateway.intake import Intake
from gateway.live_requests import LiveRequests
from gateway.served_model import ServedModel
from gateway.tokenizer import Tokenizer
from gateway.totals import Totals
from tests.gateway.fake_cache import FakeCache, served
from tests.gateway.front import running
from tests.gateway.http.surface import CREATED_S, MAX_MESSAGE_BYTES, Surface
from tests.gateway.tiny_tokenizers import BACKENDS, save_model_dir

TEMPLATE = (
    "{% for t in tools or [] %}tool:{{ t['function']['name'] }} {% endfor %}"
    "{% for m in messages %}{{ m['role'] + ':' + m['content'] + ' ' }}"
    "{% for c in m['tool_calls'] or [] %}call:{{ c['function']['arguments']['city'] }} {% endfor %}"
    "{% endfor %}"
)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    model_dir = tmp_path_factory.mktemp("tokenizer")
    save_model_dir(model_dir, BACKENDS["byte_level"](), chat_template=TEMPLATE)
    return Tokenizer.load(model_dir)


@pytest.fixture
async def surface(tokenizer: Tokenizer, tmp_path: Path) -> AsyncIterator[Surface]:
    async with surface_over(FakeCache(), tokenizer, tmp_path / "c") as surface:
        yield surface


@asynccontextmanager
async def surface_over(
    cache: FakeCache,
    tokenizer: Tokenizer,
    socket: Path,
    *,
    max_stall_s: float = 60,
    intake: Intake | None = None,
    keys: ApiKeys | None = None,
) -> AsyncIterator[Surface]:
    changed = asyncio.Event()
    async with served(cache, socket) as address:
        client = CacheClient(address, "fingerprint", changed.set)
        async with running(client):
            await cache.next("open")
            await changed.wait()
            totals = Totals()
            front = Front(
                model=ServedModel("tiny", "llama", "", "", tokenizer.vocab_size, (), True),
                created_s=CREATED_S,
                tokenizer=tokenizer,
                chain=client,
                answering=Answering(client, tokenizer, LiveRequests(), totals, intake),
                totals=totals,
                max_stall_s=max_stall_s,
            )
            app = create_app(front, MAX_MESSAGE_BYTES, keys)
            async with httpx2.AsyncClient(
                transport=httpx2.ASGITransport(app), base_url="http://gateway"
            ) as http:
                yield Surface(cache, tokenizer, front, app, http, changed)
