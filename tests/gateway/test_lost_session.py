"""Requests that live go on in the next session, against a cachesvc that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pagewire.v1 import cache_pb2 as pb

from gateway.cache_client import CacheClient
from gateway.token_feed import EndCause, Taken, TokenFeed
from servicekit.errors import InvalidArgument, Reason, Unavailable
from servicekit.sampling import Sampling
from servicekit.status import seconds_of
from tests.gateway.fake_cache import FakeCache, finished, likely, opened, tokens
from tests.gateway.test_cache_client import SUBMISSION, session
from tests.log_lines import log_lines

WITHOUT_RUNNER = pb.SessionResponse(opened=pb.Opened())


@dataclass
class Clock:
    """Stands still unless moved."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Lost:
    """A client, the manager that it talks to, and the time."""

    client: CacheClient
    cache: FakeCache
    clock: Clock
    changed: asyncio.Event

    async def submit(self, **changes: Any) -> TokenFeed:
        """One that the manager has read, and says nothing of."""
        feed = self.client.submit(SUBMISSION._replace(**changes))
        assert (await self.cache.next("submit")).key == feed.key
        return feed

    async def accepted(self, *token_ids: int, **changes: Any) -> TokenFeed:
        """One that was accepted, and got these tokens, taken."""
        feed = await self.submit(**changes)
        self.say(accept(feed))
        await feed.accepted()
        if token_ids:
            self.say(tokens(feed.key, *token_ids))
            assert await feed.take() == Taken(list(token_ids), None)
        return feed

    def say(self, response: pb.SessionResponse) -> None:
        self.cache.responses.put_nowait(response)

    async def lose(self, first: pb.SessionResponse | None = None) -> None:
        """The session ends, and another is opened, in which `first` is said first."""
        self.cache.first = first or opened(serving=True)
        self.cache.responses.put_nowait(None)
        await self.cache.next("open")

    async def until(self, *, serving: bool) -> None:
        async with asyncio.timeout(10):
            while self.client.serving != serving:
                self.changed.clear()
                await self.changed.wait()

    async def until_opened(self) -> None:
        """The client has heard the first word of the session that came after a lost one."""
        async with asyncio.timeout(10):
            while self.client._commands is None:
                self.changed.clear()
                await self.changed.wait()

    async def is_refused(self) -> Unavailable:
        """What a newcomer hears."""
        with pytest.raises(Unavailable) as caught:
            self.client.submit(SUBMISSION)
        return caught.value

    def pass_time(self, seconds: int) -> None:
        """As the client sees it that looks every half second."""
        for _ in range(2 * seconds):
            self.clock.now_s += 0.5
            self.client.look()


def accept(feed: TokenFeed) -> pb.SessionResponse:
    return pb.SessionResponse(accepted=[pb.Accepted(key=feed.key)])


@asynccontextmanager
async def losing(tmp_path: Path, **settings: Any) -> AsyncIterator[Lost]:
    cache, clock, changed = FakeCache(), Clock(), asyncio.Event()
    async with session(cache, tmp_path / "c", changed, clock=clock, **settings) as client:
        lost = Lost(client, cache, clock, changed)
        await lost.until(serving=True)
        yield lost


@pytest.fixture
async def lost(tmp_path: Path) -> AsyncIterator[Lost]:
    async with losing(tmp_path) as lost:
        yield lost


async def test_a_request_is_submitted_again_with_its_tokens_and_its_feed_just_pauses(
    lost: Lost,
) -> None:
    feed = await lost.accepted(4, 5, remaining_s=20.0)
    lost.say(tokens(feed.key, 6))
    lost.clock.now_s += 7.5
    await lost.lose()
    again = await lost.cache.next("submit")
    assert (again.key, again.request_id, list(again.prompt_ids)) == (feed.key, "label", [1, 2, 3])
    assert list(again.resume_token_ids) == [4, 5, 6]
    assert (seconds_of(again.age), seconds_of(again.remaining)) == (7.5, 12.5)
    assert (again.max_tokens, again.sampling.seed) == (8, 0)
    lost.say(accept(feed))
    lost.say(tokens(feed.key, 7))
    lost.say(finished(feed.key, pb.FINISH_CAUSE_MAX_TOKENS))
    heard: list[int] = []
    ended = None
    while ended is None:
        token_ids, ended, _ = await feed.take()
        heard += token_ids
    assert (heard, ended) == ([6, 7], EndCause.MAX_TOKENS)


async def test_a_newcomer_has_no_age(lost: Lost) -> None:
    lost.client.submit(SUBMISSION)
    assert not (await lost.cache.next("submit")).HasField("age")


async def test_they_come_in_their_order_before_any_newcomer(lost: Lost) -> None:
    """Also one that the manager has not accepted, and one that its client resumed."""
    first = await lost.accepted(4)
    second = await lost.submit()
    third = await lost.accepted(9, resume_token_ids=[7, 8])
    await lost.lose()
    again = [await lost.cache.next("submit") for _ in range(3)]
    newcomer = await lost.submit()
    assert [submit.key for submit in again] == [first.key, second.key, third.key]
    assert [list(submit.resume_token_ids) for submit in again] == [[4], [], [7, 8, 9]]
    assert all(submit.HasField("age") for submit in again)
    assert newcomer.key > third.key
    lost.say(accept(second))
    await second.accepted()


async def test_nothing_is_submitted_before_a_runner_is_there_and_newcomers_are_refused(
    lost: Lost,
) -> None:
    feed = await lost.accepted(4)
    with log_lines() as lines:
        await lost.lose(WITHOUT_RUNNER)
        await lost.until_opened()
        lost.say(opened(serving=False))
        assert (await lost.is_refused()).reason is Reason.CHAIN_NOT_ATTACHED
        lost.say(opened(serving=True))
        assert list((await lost.cache.next("submit")).resume_token_ids) == [4]
        await lost.until(serving=True)
        await lost.submit()
    events = [(line["event"], line.get("live_requests"), line.get("resubmitted")) for line in lines]
    assert ("session with cachesvc lost", 1, None) in events
    assert ("session with cachesvc opened", None, 1) in events
    assert not feed.over


async def test_without_a_session_newcomers_are_refused(lost: Lost) -> None:
    await lost.accepted(4)
    lost.cache.refused = True
    lost.cache.responses.put_nowait(None)
    await lost.until(serving=False)
    assert (await lost.is_refused()).reason is Reason.CHAIN_NOT_ATTACHED


@pytest.mark.parametrize("first", [None, WITHOUT_RUNNER], ids=["no session", "no runner"])
async def test_what_is_cancelled_or_stopped_meanwhile_is_forgotten(
    first: pb.SessionResponse | None, lost: Lost
) -> None:
    cancelled, stopped, kept = [await lost.accepted(nth) for nth in (1, 2, 3)]
    lost.cache.refused = first is None
    if first is None:
        lost.cache.responses.put_nowait(None)
    else:
        await lost.lose(first)
    await lost.until(serving=False)
    lost.client.cancel(cancelled)
    lost.client.stop(stopped, kept_tokens=1)
    if first is None:
        lost.cache.refused = False
        await lost.cache.next("open")
    else:
        lost.say(opened(serving=True))
    assert (await lost.cache.next("submit")).key == kept.key
    lost.client.cancel(kept)
    assert (await lost.cache.next("cancel")).key == kept.key, "and nothing before"


async def test_of_the_choices_that_live_the_others_wait_for_the_first(lost: Lost) -> None:
    first = await lost.accepted(1)
    further = [await lost.accepted(2, choice=nth, first_choice=first) for nth in (1, 2)]
    ended = await lost.accepted(1)
    orphans = [await lost.accepted(2, choice=nth, first_choice=ended) for nth in (1, 2, 3)]
    lost.say(finished(ended.key, pb.FINISH_CAUSE_MAX_TOKENS))
    assert (await ended.take()).ended is EndCause.MAX_TOKENS
    await lost.lose()
    again = [await lost.cache.next("submit") for _ in range(6)]
    assert [submit.key for submit in again] == [each.key for each in (first, *further, *orphans)]
    leaders = [
        submit.first_choice_key if submit.HasField("first_choice_key") else None for submit in again
    ]
    assert leaders == [None, first.key, first.key, None, orphans[0].key, orphans[0].key]
    assert [submit.choice for submit in again] == [0, 1, 2, 1, 2, 3]


async def test_each_token_has_its_log_probability_once(lost: Lost) -> None:
    wanted = Sampling(seed=0, logprobs=1)
    feed = await lost.accepted(sampling=wanted)
    lost.say(likely(feed.key, 4, 5, top=1))
    assert (await feed.take()).token_ids == [4, 5]
    assert len(feed.take_logprobs(1)) == 1
    await lost.lose()
    assert list((await lost.cache.next("submit")).resume_token_ids) == [4, 5]
    lost.say(likely(feed.key, 6, top=1))
    assert (await feed.take()).token_ids == [6]
    assert len(feed.take_logprobs(9)) == 2


async def test_cached_tokens_are_those_of_the_first_admission(lost: Lost) -> None:
    feed, waiting = await lost.accepted(), await lost.accepted()
    lost.say(pb.SessionResponse(admitted=[pb.Admitted(key=feed.key, cached_tokens=0)]))
    lost.say(tokens(feed.key, 4))
    await feed.take()
    await lost.lose()
    admitted = [pb.Admitted(key=key, cached_tokens=3) for key in (feed.key, waiting.key)]
    lost.say(pb.SessionResponse(admitted=admitted))
    lost.say(tokens(feed.key, 5))
    await feed.take()
    assert (feed.cached_tokens, waiting.cached_tokens) == (0, 3)


async def test_an_end_that_was_lost_comes_again(lost: Lost) -> None:
    feed = await lost.accepted(4, 99)
    await lost.lose()
    assert list((await lost.cache.next("submit")).resume_token_ids) == [4, 99]
    lost.say(finished(feed.key, pb.FINISH_CAUSE_STOP_TOKEN))
    assert await feed.take() == Taken([], EndCause.STOP_TOKEN)


async def test_one_that_the_next_manager_rejects_fails_alone(lost: Lost) -> None:
    """As with a runner of a shorter context behind it."""
    rejected, kept = await lost.accepted(4), await lost.accepted(5)
    await lost.lose()
    await lost.cache.next("submit")
    why = {"code": "INVALID_ARGUMENT", "reason": "CONTEXT_TOO_LONG", "message": "too long"}
    lost.say(pb.SessionResponse(rejected=[pb.Rejected(key=rejected.key, **why)]))
    with pytest.raises(InvalidArgument, match="too long"):
        await rejected.take()
    lost.say(tokens(kept.key, 6))
    assert await kept.take() == Taken([6], None)


async def test_one_that_comes_to_a_manager_that_drains_waits_for_the_next(lost: Lost) -> None:
    feed = await lost.accepted(4)
    await lost.lose()
    await lost.cache.next("submit")
    why = {"code": "UNAVAILABLE", "reason": "DRAINING", "message": "try another"}
    lost.say(pb.SessionResponse(rejected=[pb.Rejected(key=feed.key, **why)]))
    await lost.lose()
    assert (await lost.cache.next("submit")).key == feed.key
    lost.say(tokens(feed.key, 5))
    assert await feed.take() == Taken([5], None)


async def test_a_session_may_be_lost_again_at_any_moment(lost: Lost) -> None:
    one, two = await lost.accepted(4), await lost.accepted(5)
    await lost.lose(WITHOUT_RUNNER)
    await lost.lose()
    assert [list((await lost.cache.next("submit")).resume_token_ids) for _ in "12"] == [[4], [5]]
    lost.say(tokens(one.key, 6))
    assert await one.take() == Taken([6], None)
    lost.clock.now_s += 3
    await lost.lose()
    again = [await lost.cache.next("submit") for _ in range(2)]
    assert [list(submit.resume_token_ids) for submit in again] == [[4, 6], [5]]
    assert [seconds_of(submit.age) for submit in again] == [3, 3]
    assert not two.over


async def test_while_the_gateway_drains_those_that_live_go_on(lost: Lost) -> None:
    feed = await lost.accepted(4)
    lost.client.drain()
    await lost.lose()
    assert list((await lost.cache.next("submit")).resume_token_ids) == [4]
    assert (await lost.is_refused()).reason is Reason.DRAINING
    lost.say(tokens(feed.key, 5))
    assert await feed.take() == Taken([5], None)


class TestOutage:
    """Nothing serves: answers wait, but not for ever."""

    @pytest.fixture
    async def lost(self, tmp_path: Path) -> AsyncIterator[Lost]:
        """Time passes at once, and no manager speaks in between."""
        async with losing(tmp_path, manager_silence_s=1e9, max_outage_s=60) as lost:
            yield lost

    async def test_without_a_manager_each_waits_so_long_and_fails_with_what_to_do(
        self, lost: Lost
    ) -> None:
        feed = await lost.accepted(4)
        lost.cache.refused = True
        lost.cache.responses.put_nowait(None)
        await lost.until(serving=False)
        lost.pass_time(59)
        assert not feed.over
        lost.pass_time(1)
        with pytest.raises(Unavailable, match="for 60 s: cachesvc is not reached") as caught:
            await feed.take()
        assert caught.value.reason is Reason.SESSION_LOST
        assert "as resume_token_ids" in caught.value.message

    async def test_a_manager_without_a_runner_is_told_to_forget_them(self, lost: Lost) -> None:
        early = await lost.accepted(4)
        lost.say(opened(serving=False))
        await lost.until(serving=False)
        lost.pass_time(30)
        late = await lost.accepted()
        lost.pass_time(30)
        with pytest.raises(Unavailable, match="cachesvc has no runner"):
            await early.take()
        assert (await lost.cache.next("cancel")).key == early.key
        assert not late.over, "it has waited for half of that"
        lost.pass_time(30)
        assert late.over

    async def test_a_manager_that_never_gets_a_runner(self, lost: Lost) -> None:
        feed = await lost.accepted(4)
        await lost.lose(WITHOUT_RUNNER)
        await lost.until_opened()
        lost.pass_time(60)
        with pytest.raises(Unavailable, match="has no runner yet"):
            await feed.take()

    async def test_it_is_over_when_something_serves(self, lost: Lost) -> None:
        feed = await lost.accepted(4)
        for _ in range(3):
            lost.say(opened(serving=False))
            await lost.until(serving=False)
            lost.pass_time(59)
            lost.say(opened(serving=True))
            await lost.until(serving=True)
        assert not feed.over

    async def test_a_manager_that_drains_and_goes_on_with_them_is_none(self, lost: Lost) -> None:
        feed = await lost.accepted(4)
        lost.say(opened(serving=False))
        for token_id in range(3):
            lost.pass_time(59)
            lost.say(tokens(feed.key, token_id))
            assert await feed.take() == Taken([token_id], None)


class TestSilence:
    """A manager that says nothing hangs; the requests wait for it."""

    async def test_health_follows_both_ways(self, lost: Lost) -> None:
        feed = await lost.accepted(4)
        with log_lines() as lines:
            lost.pass_time(4)
            assert not lost.client.serving
            refused = await lost.is_refused()
            assert (refused.reason, "does not answer" in refused.message) == (
                Reason.CHAIN_NOT_ATTACHED,
                True,
            )
            lost.say(pb.SessionResponse(load=pb.Load()))
            await lost.until(serving=True)
        events = [line["event"] for line in lines]
        assert events == ["manager silent", "manager answers again"]
        assert all(line["silent_s"] > 3 for line in lines)
        lost.say(tokens(feed.key, 5))
        assert await feed.take() == Taken([5], None)

    async def test_it_is_an_outage(self, lost: Lost) -> None:
        feed = await lost.accepted(4)
        lost.pass_time(130)
        with pytest.raises(Unavailable, match="cachesvc does not answer"):
            await feed.take()

    async def test_a_manager_that_is_killed_while_it_hangs_is_lost(self, lost: Lost) -> None:
        feed = await lost.accepted(4)
        lost.pass_time(4)
        await lost.lose()
        assert list((await lost.cache.next("submit")).resume_token_ids) == [4]
        await lost.until(serving=True)
        assert not feed.over
