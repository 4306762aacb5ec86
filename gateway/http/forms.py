"""What the forms of answers of the two OpenAI routes have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from pydantic import BaseModel

from gateway.generation import Finished
from gateway.http.answers import LEAST_LOGPROB, CachedTokens, Usage
from gateway.text_stream import Delta


class Whole(NamedTuple):
    """All that one choice said."""

    deltas: Sequence[Delta]
    finished: Finished

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)


class Form(Protocol):
    """`idx` is the choice's in the call."""

    def whole(self, choices: Sequence[Whole]) -> BaseModel: ...

    def began(self, idx: int) -> BaseModel | None:
        """None: nothing is said before the first text."""

    def grew(self, idx: int, delta: Delta) -> BaseModel: ...

    def ended(self, idx: int, finished: Finished) -> BaseModel: ...

    def used(self, usage: Usage) -> BaseModel:
        """The chunk that has the usage and no choice."""


class CommonForm:
    """What everything that answers one call says of it."""

    def __init__(self, answer_id: str, created: int, model: str, *, with_usage: bool) -> None:
        """`with_usage`: chunks have the field, which is null in all but one."""
        self._common: dict[str, Any] = {"id": answer_id, "created": created, "model": model}
        self._of_chunk = self._common | ({"usage": None} if with_usage else {})


def json_logprob(logprob: float) -> float:
    """JSON has no infinity."""
    return max(logprob, LEAST_LOGPROB)


def reason_of(finished: Finished | None) -> Any:
    return None if finished is None else finished.reason.value.lower()


def usage_of(choices: Iterable[Finished]) -> Usage:
    """Of all choices of one call together; their prompts once each."""
    ends = list(choices)
    firsts = [end for end in ends if end.choice == 0]
    prompt_tokens = sum(end.prompt_tokens for end in firsts)
    completion_tokens = sum(end.completion_tokens for end in ends)
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=CachedTokens(cached_tokens=sum(end.cached_tokens for end in firsts)),
    )
