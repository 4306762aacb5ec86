"""Answers in the form that each of the two OpenAI routes has, made of what generations say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from pydantic import BaseModel

from gateway.generation import Finished
from gateway.http.answers import (
    AnsweredMessage,
    CachedTokens,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    Completion,
    CompletionChoice,
    Usage,
)
from gateway.text_stream import Delta


class Whole(NamedTuple):
    """All that one choice said."""

    deltas: Sequence[Delta]
    finished: Finished

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)


class Form(Protocol):
    """`idx` is the choice's."""

    def whole(self, choices: Sequence[Whole]) -> BaseModel: ...

    def began(self, idx: int) -> BaseModel | None:
        """None: nothing is said before the first text."""

    def grew(self, idx: int, delta: Delta) -> BaseModel: ...

    def ended(self, idx: int, finished: Finished) -> BaseModel: ...

    def used(self, usage: Usage) -> BaseModel:
        """The chunk that has the usage and no choice."""


class _Common:
    """What everything that answers one call says of it."""

    def __init__(self, answer_id: str, created: int, model: str, *, with_usage: bool) -> None:
        """`with_usage`: chunks have the field, which is null in all but one."""
        self._common: dict[str, Any] = {"id": answer_id, "created": created, "model": model}
        self._of_chunk = self._common | ({"usage": None} if with_usage else {})


class ChatForm(_Common):
    def whole(self, choices: Sequence[Whole]) -> ChatCompletion:
        return ChatCompletion(
            object="chat.completion",
            choices=[
                ChatChoice(
                    index=idx,
                    message=AnsweredMessage(role="assistant", content=choice.text),
                    logprobs=None,
                    finish_reason=_reason(choice.finished),
                )
                for idx, choice in enumerate(choices)
            ],
            usage=usage_of(choice.finished for choice in choices),
            **self._common,
        )

    def began(self, idx: int) -> ChatCompletionChunk:
        return self._chunk(idx, ChatDelta(role="assistant", content=""))

    def grew(self, idx: int, delta: Delta) -> ChatCompletionChunk:
        return self._chunk(idx, ChatDelta(content=delta.text))

    def ended(self, idx: int, finished: Finished) -> ChatCompletionChunk:
        return self._chunk(idx, ChatDelta(), finished)

    def used(self, usage: Usage) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            object="chat.completion.chunk", choices=[], **(self._of_chunk | {"usage": usage})
        )

    def _chunk(
        self, idx: int, delta: ChatDelta, finished: Finished | None = None
    ) -> ChatCompletionChunk:
        choice = ChatChunkChoice(
            index=idx, delta=delta, logprobs=None, finish_reason=_reason(finished)
        )
        return ChatCompletionChunk(
            object="chat.completion.chunk", choices=[choice], **self._of_chunk
        )


class CompletionForm(_Common):
    def whole(self, choices: Sequence[Whole]) -> Completion:
        return Completion(
            object="text_completion",
            choices=[
                _text_choice(idx, choice.text, choice.finished)
                for idx, choice in enumerate(choices)
            ],
            usage=usage_of(choice.finished for choice in choices),
            **self._common,
        )

    def began(self, idx: int) -> None:
        return None

    def grew(self, idx: int, delta: Delta) -> Completion:
        return self._chunk([_text_choice(idx, delta.text)])

    def ended(self, idx: int, finished: Finished) -> Completion:
        return self._chunk([_text_choice(idx, "", finished)])

    def used(self, usage: Usage) -> Completion:
        return Completion(
            object="text_completion", choices=[], **(self._of_chunk | {"usage": usage})
        )

    def _chunk(self, choices: list[CompletionChoice]) -> Completion:
        return Completion(object="text_completion", choices=choices, **self._of_chunk)


def _text_choice(idx: int, text: str, finished: Finished | None = None) -> CompletionChoice:
    return CompletionChoice(index=idx, text=text, logprobs=None, finish_reason=_reason(finished))


def _reason(finished: Finished | None) -> Any:
    return None if finished is None else finished.reason.value.lower()


def usage_of(choices: Iterable[Finished]) -> Usage:
    """Of all choices of one call together."""
    ends = list(choices)
    prompt_tokens = sum(end.prompt_tokens for end in ends)
    completion_tokens = sum(end.completion_tokens for end in ends)
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=CachedTokens(cached_tokens=sum(end.cached_tokens for end in ends)),
    )
