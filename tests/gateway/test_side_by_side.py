"""Several answers as one stream: nothing before all started, and nobody left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from gateway.generation import Event, Started
from gateway.side_by_side import Said, side_by_side
from gateway.text_stream import Delta

STARTED = Started("id", 1)


class Played:
    """An answer that says what it is told to, and knows when it was left."""

    def __init__(self) -> None:
        self.says: asyncio.Queue[Event | Exception | None] = asyncio.Queue()  # None: the end
        self._left = asyncio.Event()

    @property
    def left(self) -> bool:
        return self._left.is_set()

    async def until_left(self) -> None:
        await self._left.wait()

    def tell(self, *events: Event | Exception | None) -> Played:
        for event in events:
            self.says.put_nowait(event)
        return self

    async def events(self) -> AsyncGenerator[Event, None]:
        try:
            while (event := await self.says.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self._left.set()


def text(words: str) -> Delta:
    return Delta(words, ())


async def test_what_one_says_is_held_until_the_other_started() -> None:
    early = Played().tell(STARTED, text("a"), text("b"), None)
    late = Played()
    async with aclosing(side_by_side([early.events(), late.events()])) as said:
        first = asyncio.ensure_future(anext(said))
        await early.until_left()
        assert not first.done()
        late.tell(STARTED, text("c"), None)
        rest = [await first] + [each async for each in said]
    assert rest == [
        Said(0, STARTED),
        Said(0, text("a")),
        Said(0, text("b")),
        Said(1, STARTED),
        Said(1, text("c")),
    ]


async def test_a_failure_of_one_ends_them_all() -> None:
    fails, goes_on = Played().tell(STARTED, ValueError("no")), Played().tell(STARTED)
    with pytest.raises(ValueError, match="no"):
        async for _ in side_by_side([fails.events(), goes_on.events()]):
            pass
    assert (fails.left, goes_on.left) == (True, True)


async def test_whoever_leaves_early_leaves_them_all() -> None:
    answers = [Played().tell(STARTED) for _ in range(3)]
    async with aclosing(side_by_side([answer.events() for answer in answers])) as said:
        await anext(said)
    assert [answer.left for answer in answers] == [True] * 3


async def test_an_answer_is_at_most_one_event_ahead_of_a_slow_reader() -> None:
    answer = Played().tell(STARTED, *[text("x")] * 10, None)
    async with aclosing(side_by_side([answer.events()])) as said:
        await anext(said)
        for _ in range(100):
            await asyncio.sleep(0)
        assert answer.says.qsize() >= 8
