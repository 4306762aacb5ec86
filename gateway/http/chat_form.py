"""Answers as /v1/chat/completions has them, made of what generations say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gateway.generation import Finished
from gateway.http.answers import (
    AnsweredMessage,
    AnsweredToken,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
    LikelyToken,
    Usage,
)
from gateway.http.forms import CommonForm, Whole, json_logprob, reason_of, usage_of
from gateway.text_stream import Delta
from gateway.token_texts import TokenTexts


class ChatForm(CommonForm):
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
                    finish_reason=reason_of(choice.finished),
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
            index=idx, delta=delta, logprobs=logprobs, finish_reason=reason_of(finished)
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
        return {
            "token": self._texts[token_id],
            "logprob": json_logprob(logprob),
            "bytes": list(self._texts.bytes_of(token_id)),
        }
