"""The answer to one call: whole, or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel

from gateway.answering import Make
from gateway.front import Front
from gateway.generation import Finished, Started
from gateway.http.answer_request import AnswerRequest
from gateway.http.errors import json_response
from gateway.http.event_stream import EventStream
from gateway.http.forms import Form, Whole, usage_of
from gateway.http.until_gone import until_gone
from gateway.side_by_side import Said, side_by_side
from gateway.text_stream import Delta


class Question(NamedTuple):
    """One of the prompts of a call."""

    request_id: str
    make: Make


async def replied(
    request: Request,
    front: Front,
    asked: AnswerRequest,
    questions: Sequence[Question],
    form: Form,
) -> Response:
    """The choices of each question, one question's after the other's. Whoever leaves ends all.

    Errors: those of `Answering.events_of`; in a stream only those that come before the first chunk,
    and that is sent when all are taken (a chat, an echo) or one has text (a completion).
    """
    said = side_by_side([front.answering.events_of(*each) for each in questions])
    if not asked.stream:
        whole = _whole(said, len(questions), asked.num_choices, form)
        return json_response(await until_gone(whole, request.receive, front.cut))
    chunks = _chunks(said, form, asked)
    first = await until_gone(_first(chunks), request.receive, front.cut)
    return EventStream(first, chunks, front.cut, request.state.params, front.max_stall_s)


async def _whole(
    said: AsyncGenerator[Said, None], num_questions: int, num_choices: int, form: Form
) -> BaseModel:
    deltas: list[list[Delta]] = [[] for _ in range(num_questions * num_choices)]
    ends: dict[int, Finished] = {}
    async with aclosing(said):
        async for idx, event in said:
            if isinstance(event, Delta):
                deltas[idx * num_choices + event.choice].append(event)
            elif isinstance(event, Finished):
                ends[idx * num_choices + event.choice] = event
    return form.whole([Whole(each, ends[idx]) for idx, each in enumerate(deltas)])


async def _chunks(
    said: AsyncGenerator[Said, None], form: Form, asked: AnswerRequest
) -> AsyncGenerator[BaseModel, None]:
    ends: list[Finished] = []
    async with aclosing(said):
        async for idx, event in said:
            first_idx = idx * asked.num_choices
            if isinstance(event, Started):
                for choice in range(asked.num_choices):
                    if (chunk := form.began(first_idx + choice)) is not None:
                        yield chunk
            elif isinstance(event, Finished):
                ends.append(event)
                yield form.ended(first_idx + event.choice, event)
            elif event.text or event.logprobs:
                yield form.grew(first_idx + event.choice, event)
    if asked.include_usage:
        yield form.used(usage_of(ends))


async def _first(chunks: AsyncGenerator[BaseModel, None]) -> BaseModel:
    return await anext(chunks)
