"""Tokens between session and stream."""

from __future__ import annotations

import asyncio

import pytest

from gateway.token_feed import EndCause, Taken, TokenFeed
from servicekit.errors import InvalidArgument, Reason, Unavailable


async def test_what_came_since_the_last_take_is_taken_at_once_and_in_order() -> None:
    feed = TokenFeed(key=1)
    for token_id in (5, 6, 7):
        feed.put_token(token_id)
    assert await feed.take() == Taken([5, 6, 7], None)
    feed.put_token(8)
    feed.put_end(EndCause.MAX_TOKENS)
    assert await feed.take() == Taken([8], EndCause.MAX_TOKENS)


async def test_what_is_taken_at_once_was_sent_when_the_first_of_it_was() -> None:
    feed = TokenFeed(key=1)
    feed.put_token(5, sent_at_us=1_000)
    feed.put_token(6, sent_at_us=2_000)
    assert await feed.take() == Taken([5, 6], None, sent_at_us=1_000)
    feed.put_token(7, sent_at_us=3_000)
    assert await feed.take() == Taken([7], None, sent_at_us=3_000)
    feed.put_end(EndCause.MAX_TOKENS)
    assert await feed.take() == Taken([], EndCause.MAX_TOKENS)


async def test_a_take_waits_for_the_next_token() -> None:
    feed = TokenFeed(key=1)
    taking = asyncio.create_task(feed.take())
    await asyncio.sleep(0)
    assert not taking.done()
    feed.put_token(9)
    assert await taking == Taken([9], None)


async def test_a_rejected_request_raises_when_its_acceptance_is_awaited() -> None:
    feed = TokenFeed(key=1)
    feed.put_failure(InvalidArgument(Reason.EMPTY_PROMPT, "the prompt is empty"))
    with pytest.raises(InvalidArgument, match="the prompt is empty"):
        await feed.accepted()
    assert feed.over


async def test_tokens_that_came_before_a_failure_are_delivered_before_it() -> None:
    feed = TokenFeed(key=1)
    feed.put_accepted()
    feed.put_token(3)
    feed.put_failure(Unavailable(Reason.SESSION_LOST, "lost"))
    await feed.accepted()
    assert await feed.take() == Taken([3], None)
    with pytest.raises(Unavailable, match="lost"):
        await feed.take()
