"""Answers as /v1/completions has them, made of what generations say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.generation import Finished
from gateway.http.answers import Completion, CompletionChoice, CompletionLogprobs, Usage
from gateway.http.forms import CommonForm, Whole, json_logprob, reason_of, usage_of
from gateway.text_stream import Delta
from gateway.token_logprob import TokenLogprob
from gateway.token_texts import TokenTexts


class CompletionForm(CommonForm):
    def __init__(
        self,
        answer_id: str,
        created: int,
        model: str,
        texts: TokenTexts,
        echoes: Sequence[str],
        *,
        with_usage: bool,
    ) -> None:
        """`echoes`: what comes before each choice's text; none: nothing."""
        super().__init__(answer_id, created, model, with_usage=with_usage)
        self._texts = texts
        self._echoes = echoes

    def whole(self, choices: Sequence[Whole]) -> Completion:
        return Completion(
            object="text_completion",
            choices=[
                self._choice(idx, self._echo(idx) + choice.text, choice.deltas, choice.finished)
                for idx, choice in enumerate(choices)
            ],
            usage=usage_of(choice.finished for choice in choices),
            **self._common,
        )

    def began(self, idx: int) -> Completion | None:
        return self._chunk(self._choice(idx, echo)) if (echo := self._echo(idx)) else None

    def grew(self, idx: int, delta: Delta) -> Completion:
        return self._chunk(self._choice(idx, delta.text, [delta]))

    def ended(self, idx: int, finished: Finished) -> Completion:
        return self._chunk(self._choice(idx, "", finished=finished))

    def used(self, usage: Usage) -> Completion:
        return Completion(
            object="text_completion", choices=[], **(self._of_chunk | {"usage": usage})
        )

    def _chunk(self, choice: CompletionChoice) -> Completion:
        return Completion(object="text_completion", choices=[choice], **self._of_chunk)

    def _echo(self, idx: int) -> str:
        return self._echoes[idx] if self._echoes else ""

    def _choice(
        self, idx: int, text: str, deltas: Iterable[Delta] = (), finished: Finished | None = None
    ) -> CompletionChoice:
        return CompletionChoice(
            index=idx,
            text=text,
            logprobs=self._logprobs(deltas),
            finish_reason=reason_of(finished),
        )

    def _logprobs(self, deltas: Iterable[Delta]) -> CompletionLogprobs | None:
        logprobs = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for delta in deltas:
            if not delta.logprobs:
                continue
            for token_id, one in zip(delta.token_ids, delta.logprobs, strict=True):
                logprobs.tokens.append(self._texts[token_id])
                logprobs.token_logprobs.append(json_logprob(one.logprob))
                logprobs.top_logprobs.append(self._top(token_id, one))
            logprobs.text_offset += delta.starts
        return logprobs if logprobs.tokens else None

    def _top(self, token_id: int, one: TokenLogprob) -> dict[str, float]:
        """By text: of several tokens with the same, as parts of characters, the likeliest."""
        top: dict[str, float] = {}
        for likely_id, logprob in (*one.top, (token_id, one.logprob)):
            top.setdefault(self._texts[likely_id], json_logprob(logprob))
        return top
