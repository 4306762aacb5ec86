"""The answer to one call: whole, or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel

from gateway.generation import Finished, GenerationRequest, Started
from gateway.http.errors import json_response
from gateway.http.event_stream import EventStream
from gateway.http.forms import Form, Whole, usage_of
from gateway.http.front import Front
from gateway.http.side_by_side import Said, side_by_side
from gateway.http.until_gone import until_gone
from gateway.text_stream import Delta


async def replied(
    request: Request,
    front: Front,
    generations: Sequence[GenerationRequest],
    form: Form,
    *,
    stream: bool | None,
    include_usage: bool,
) -> Response:
    """A choice for each of `generations`. Whoever leaves ends them all.

    Errors: those of `Answering.events`; in a stream only those that come before the first chunk,
    and that is sent when all are taken (a chat) or one has text (a completion).
    """
    said = side_by_side([front.answering.events(each) for each in generations])
    if not stream:
        whole = _whole(said, len(generations), form)
        return json_response(await until_gone(whole, request.receive, front.cut))
    chunks = _chunks(said, form, include_usage=include_usage)
    first = await until_gone(_first(chunks), request.receive, front.cut)
    return EventStream(first, chunks, front.cut, request.state.params)


async def _whole(said: AsyncGenerator[Said, None], num_choices: int, form: Form) -> BaseModel:
    deltas: list[list[Delta]] = [[] for _ in range(num_choices)]
    ends: dict[int, Finished] = {}
    async with aclosing(said):
        async for idx, event in said:
            if isinstance(event, Delta):
                deltas[idx].append(event)
            elif isinstance(event, Finished):
                ends[idx] = event
    return form.whole([Whole(deltas[idx], ends[idx]) for idx in range(num_choices)])


async def _chunks(
    said: AsyncGenerator[Said, None], form: Form, *, include_usage: bool
) -> AsyncGenerator[BaseModel, None]:
    ends: list[Finished] = []
    async with aclosing(said):
        async for idx, event in said:
            if isinstance(event, Started):
                if (chunk := form.began(idx)) is not None:
                    yield chunk
            elif isinstance(event, Finished):
                ends.append(event)
                yield form.ended(idx, event)
            elif event.text or event.logprobs:
                yield form.grew(idx, event)
    if include_usage:
        yield form.used(usage_of(ends))


async def _first(chunks: AsyncGenerator[BaseModel, None]) -> BaseModel:
    return await anext(chunks)
