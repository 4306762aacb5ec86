"""Answers in the form that each of the two OpenAI routes has, made of what generations say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from pydantic import BaseModel

from gateway.generation import Finished
from gateway.http.answers import (
    LEAST_LOGPROB,
    AnsweredMessage,
    AnsweredToken,
    CachedTokens,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
    Completion,
    CompletionChoice,
    LikelyToken,
    Usage,
)
from gateway.text_stream import Delta
from gateway.token_texts import TokenTexts


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
    def __init__(
        self, answer_id: str, created: int, model: str, texts: TokenTexts, *, with_usage: bool
    ) -> None:
        super().__init__(answer_id, created, model, with_usage=with_usage)
        self._texts = texts

    def whole(self, choices: Sequence[Whole]) -> ChatCompletion:
        return ChatCompletion(
            object="chat.completion",
            choices=[
                ChatChoice(
                    index=idx,
                    message=AnsweredMessage(role="assistant", content=choice.text),
                    logprobs=self._logprobs(choice.deltas),
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
        return self._chunk(idx, ChatDelta(content=delta.text), logprobs=self._logprobs([delta]))

    def ended(self, idx: int, finished: Finished) -> ChatCompletionChunk:
        return self._chunk(idx, ChatDelta(), finished)

    def used(self, usage: Usage) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            object="chat.completion.chunk", choices=[], **(self._of_chunk | {"usage": usage})
        )

    def _chunk(
        self,
        idx: int,
        delta: ChatDelta,
        finished: Finished | None = None,
        logprobs: ChatLogprobs | None = None,
    ) -> ChatCompletionChunk:
        choice = ChatChunkChoice(
            index=idx, delta=delta, logprobs=logprobs, finish_reason=_reason(finished)
        )
        return ChatCompletionChunk(
            object="chat.completion.chunk", choices=[choice], **self._of_chunk
        )

    def _logprobs(self, deltas: Iterable[Delta]) -> ChatLogprobs | None:
        content = [
            AnsweredToken(
                **self._likely(token_id, one.logprob),
                top_logprobs=[LikelyToken(**self._likely(*top)) for top in one.top],
            )
            for delta in deltas
            if delta.logprobs
            for token_id, one in zip(delta.token_ids, delta.logprobs, strict=True)
        ]
        return ChatLogprobs(content=content, refusal=None) if content else None

    def _likely(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self._texts[token_id]
        return {
            "token": text,
            "logprob": max(logprob, LEAST_LOGPROB),
            "bytes": None if "\ufffd" in text else list(text.encode()),
        }


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
