"""Several answers, as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import NamedTuple, TypeAlias

from gateway.generation import Event, Started


class Said(NamedTuple):
    """An event, and which of the answers it is of."""

    idx: int
    event: Event


Spoken: TypeAlias = Said | Exception | None  # None: one of them ended


async def side_by_side(
    answers: Sequence[AsyncGenerator[Event, None]],
) -> AsyncGenerator[Said, None]:
    """What all say as it comes, but nothing before each of them started; to its end, or to the
    first failure of one.

    An answer is at most one event ahead of who reads. Leaving early, or a failure, leaves them all.
    """
    spoken: asyncio.Queue[Spoken] = asyncio.Queue(maxsize=1)
    readers = [
        asyncio.create_task(_read(idx, answer, spoken)) for idx, answer in enumerate(answers)
    ]
    not_started, held = len(answers), list[Said]()
    try:
        async for said in _until_all_ended(spoken, len(answers)):
            held.append(said)
            not_started -= isinstance(said.event, Started)
            while held and not not_started:
                yield held.pop(0)
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _read(
    idx: int, answer: AsyncGenerator[Event, None], spoken: asyncio.Queue[Spoken]
) -> None:
    try:
        async with aclosing(answer):
            async for event in answer:
                await spoken.put(Said(idx, event))
    except Exception as failure:  # noqa: BLE001 # raised where it is read
        await spoken.put(failure)
    else:
        await spoken.put(None)


async def _until_all_ended(spoken: asyncio.Queue[Spoken], live: int) -> AsyncIterator[Said]:
    while live:
        said = await spoken.get()
        if isinstance(said, Exception):
            raise said
        if said is None:
            live -= 1
        else:
            yield said
