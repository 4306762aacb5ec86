"""The session against a cachesvc that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pagewire.v1 import cache_pb2 as pb

from gateway.cache_client import CacheClient
from gateway.submission import Submission
from gateway.token_feed import EndCause, Taken, TokenFeed
from servicekit.errors import InvalidArgument, Reason, Unavailable
from servicekit.sampling import Sampling
from tests.gateway.fake_cache import FakeCache, finished, opened, served, tokens

SUBMISSION = Submission(
    "label", [1, 2, 3], Sampling(temperature=0.5, top_k=4, top_p=0.9, seed=0), 8, [99]
)


@asynccontextmanager
async def session(
    cache: FakeCache, socket: Path, changed: asyncio.Event | None = None, **settings: Any
) -> AsyncIterator[CacheClient]:
    """A client whose session is open; `changed` is set when its serving may have changed."""
    changed = changed or asyncio.Event()
    async with served(cache, socket) as address:
        client = CacheClient(address, "fingerprint", changed.set, **settings)
        running = asyncio.create_task(client.run())
        try:
            opening = await cache.next("open")
            assert (opening.protocol_version, opening.model_fingerprint) == (1, "fingerprint")
            await asyncio.wait_for(changed.wait(), 10)
            yield client
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def accepted(client: CacheClient, cache: FakeCache) -> TokenFeed:
    feed = client.submit(SUBMISSION)
    await cache.next("submit")
    cache.responses.put_nowait(pb.SessionResponse(accepted=[pb.Accepted(key=feed.key)]))
    await feed.accepted()
    return feed


async def test_a_submit_carries_everything_and_each_key_is_above_the_last(tmp_path: Path) -> None:
    cache = FakeCache()
    async with session(cache, tmp_path / "c") as client:
        client.submit(SUBMISSION)
        client.submit(SUBMISSION._replace(max_tokens=None, priority=-3, cache_salt="tenant"))
        first, second = await cache.next("submit"), await cache.next("submit")
    assert second.key == first.key + 1
    assert first.request_id == "label"
    assert list(first.prompt_ids) == [1, 2, 3]
    assert list(first.stop_token_ids) == [99]
    assert first.sampling.HasField("seed"), "seed 0 is a seed"
    assert first.sampling.top_k == 4
    assert first.max_tokens == 8
    assert not second.HasField("max_tokens")
    assert (first.priority, first.cache_salt) == (0, "")
    assert (second.priority, second.cache_salt) == (-3, "tenant")


async def test_a_further_choice_names_the_first_one(tmp_path: Path) -> None:
    cache = FakeCache()
    async with session(cache, tmp_path / "c") as client:
        feed = client.submit(SUBMISSION)
        client.submit(SUBMISSION._replace(choice=2, first_choice=feed))
        first, further = await cache.next("submit"), await cache.next("submit")
    assert (first.choice, first.HasField("first_choice_key")) == (0, False)
    assert (further.choice, further.first_choice_key) == (2, first.key)


async def test_tokens_of_two_requests_reach_their_own_feeds(tmp_path: Path) -> None:
    cache = FakeCache()
    async with session(cache, tmp_path / "c") as client:
        one, two = await accepted(client, cache), await accepted(client, cache)
        output = pb.StepOutput(keys=[one.key, two.key, one.key], token_ids=[10, 20, 11])
        cache.responses.put_nowait(pb.SessionResponse(step_output=output))
        cache.responses.put_nowait(finished(two.key, pb.FINISH_CAUSE_CACHE_FULL))
        assert await one.take() == Taken([10, 11], None)
        assert (await two.take()).token_ids == [20]
        assert await two.take() == Taken([], EndCause.CACHE_FULL)


async def test_a_rejection_comes_back_as_the_error_that_the_manager_raised(tmp_path: Path) -> None:
    cache = FakeCache()
    async with session(cache, tmp_path / "c") as client:
        feed = client.submit(SUBMISSION)
        rejected = pb.Rejected(
            key=feed.key,
            code="INVALID_ARGUMENT",
            reason="CONTEXT_TOO_LONG",
            message="too long",
            metadata={"field": "stop.max_tokens"},
        )
        cache.responses.put_nowait(pb.SessionResponse(rejected=[rejected]))
        with pytest.raises(InvalidArgument, match="too long") as caught:
            await feed.accepted()
    assert caught.value.reason is Reason.CONTEXT_TOO_LONG
    assert caught.value.metadata == {"field": "stop.max_tokens"}


async def test_a_cancel_is_sent_once_and_never_for_a_request_that_ended(tmp_path: Path) -> None:
    cache = FakeCache()
    async with session(cache, tmp_path / "c") as client:
        one, two, three = [await accepted(client, cache) for _ in range(3)]
        cache.responses.put_nowait(finished(one.key, pb.FINISH_CAUSE_MAX_TOKENS))
        assert (await one.take()).ended is EndCause.MAX_TOKENS
        client.cancel(one)
        client.cancel(two)
        client.cancel(two)
        client.stop(three, kept_tokens=5)
        assert (await cache.next("cancel")).key == two.key
        stop = await cache.next("stop")
    assert (stop.key, stop.kept_tokens) == (three.key, 5)


async def test_serving_follows_the_runner_behind_the_manager(tmp_path: Path) -> None:
    cache = FakeCache()
    async with session(cache, tmp_path / "c") as client:
        assert client.serving
        feed = await accepted(client, cache)
        cache.responses.put_nowait(opened(serving=False))
        cache.responses.put_nowait(tokens(feed.key, 4))
        assert await feed.take() == Taken([4], None)
        assert not client.serving
        assert (await accepted(client, cache)).key > feed.key, "requests wait for the runner"


async def test_without_a_session_a_submit_is_unavailable(tmp_path: Path) -> None:
    client = CacheClient(f"unix:{tmp_path}/nobody", "fingerprint", lambda: None)
    with pytest.raises(Unavailable) as caught:
        client.submit(SUBMISSION)
    assert caught.value.reason is Reason.CHAIN_NOT_ATTACHED
    running = asyncio.create_task(client.run())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_sessions_that_end_leave_no_task_behind(tmp_path: Path) -> None:
    """The pump of a session's commands once waited for ever for the next one."""
    cache, changed = FakeCache(), asyncio.Event()
    async with session(cache, tmp_path / "c", changed):
        before = len(asyncio.all_tasks())
        for _ in range(5):
            cache.responses.put_nowait(None)
            changed.clear()
            await cache.next("open")
            await asyncio.wait_for(changed.wait(), 10)
        assert len(asyncio.all_tasks()) <= before + 1
