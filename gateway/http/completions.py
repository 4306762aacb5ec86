"""POST /v1/completions."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gateway import off_loop
from gateway.answering import Make
from gateway.generation import GenerationRequest
from gateway.http.answers import Completion
from gateway.http.completion_form import CompletionForm
from gateway.http.completion_request import DEFAULT_MAX_TOKENS, CompletionRequest, Prompt
from gateway.http.documented import STREAMED
from gateway.http.front import Front
from gateway.http.refusal import JsonRoute
from gateway.http.reply import Question, replied
from gateway.prompt import prompt_ids_of
from gateway.token_texts import TokenTexts
from gateway.traceparent import traceparent_of
from servicekit.token_ids import check_token_ids


def completion_routes(front: Front) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)
    texts = TokenTexts(front.tokenizer)

    @router.post("/v1/completions", response_model=Completion, responses=STREAMED)
    async def create_completion(asked: CompletionRequest, request: Request) -> Response:
        """Continues a prompt, or several."""
        request.state.params = {"sampling.logprobs": "logprobs"}
        front.check_model(asked.model)
        prompts, turn = asked.prompts(), asyncio.Lock()

        def making(prompt: Prompt) -> Make:
            async def make(request_id: str) -> GenerationRequest:
                async with turn:  # one prompt, then others go on
                    prompt_ids = await _ids(prompt)
                    await asyncio.sleep(0)
                return asked.generation_request(
                    request_id=request_id,
                    prompt_ids=prompt_ids,
                    max_tokens=_max_tokens(asked.max_tokens, len(prompt_ids)),
                    traceparent=traceparent_of(request.headers.items()),
                )

            return make

        answer_id = f"cmpl-{secrets.token_hex(12)}"
        ids = (
            [answer_id] if len(prompts) == 1 else [f"{answer_id}-{i}" for i in range(len(prompts))]
        )
        questions = [Question(*each) for each in zip(ids, map(making, prompts), strict=True)]
        form = CompletionForm(
            answer_id,
            int(time.time()),
            front.model.name,
            texts,
            [await _text(each) for each in prompts for _ in range(asked.num_choices) if asked.echo],
            with_usage=asked.include_usage,
        )
        return await replied(request, front, asked, questions, form)

    async def _ids(prompt: Prompt) -> Sequence[int]:
        return await prompt_ids_of(front.tokenizer, prompt) if isinstance(prompt, str) else prompt

    async def _text(prompt: Prompt) -> str:
        if isinstance(prompt, str):
            return prompt
        check_token_ids("prompt", prompt, front.tokenizer.vocab_size)
        return await off_loop.decode(front.tokenizer, prompt, skip_special_tokens=True)

    def _max_tokens(asked: int | None, prompt_len: int) -> int:
        if asked is not None:
            return asked
        if front.max_seq_len is None:
            return DEFAULT_MAX_TOKENS
        return max(1, min(DEFAULT_MAX_TOKENS, front.max_seq_len - prompt_len))

    return router
