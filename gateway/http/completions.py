"""POST /v1/completions."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gateway import off_loop
from gateway.front import Front
from gateway.generation import GenerationRequest
from gateway.http.answers import Completion
from gateway.http.completion_form import CompletionForm
from gateway.http.completion_request import DEFAULT_MAX_TOKENS, CompletionRequest, Prompt
from gateway.http.documented import STREAMED
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
        answer_id, prompts = f"cmpl-{secrets.token_hex(12)}", asked.prompts()
        echoes = [await _text(prompt) for prompt in prompts] if asked.echo else []
        form = CompletionForm(
            answer_id,
            int(time.time()),
            front.model.name,
            texts,
            [echo for echo in echoes for _ in range(asked.num_choices)],
            with_usage=asked.include_usage,
        )
        questions = _questions(asked, prompts, answer_id, traceparent_of(request.headers.items()))
        return await replied(request, front, asked, questions, form)

    def _questions(
        asked: CompletionRequest, prompts: Sequence[Prompt], answer_id: str, traceparent: str
    ) -> list[Question]:
        turn = asyncio.Lock()

        async def made(prompt: Prompt, request_id: str) -> GenerationRequest:
            async with turn:  # a prompt at a time, and others go on in between
                prompt_ids = await _ids(prompt)
                await asyncio.sleep(0)
            max_tokens = _max_tokens(asked, len(prompt_ids))
            return asked.generation_request(request_id, prompt_ids, max_tokens, traceparent)

        several = len(prompts) > 1
        return [
            Question(f"{answer_id}-{idx}" if several else answer_id, partial(made, prompt))
            for idx, prompt in enumerate(prompts)
        ]

    async def _ids(prompt: Prompt) -> Sequence[int]:
        return await prompt_ids_of(front.tokenizer, prompt) if isinstance(prompt, str) else prompt

    async def _text(prompt: Prompt) -> str:
        if isinstance(prompt, str):
            return prompt
        check_token_ids("prompt", prompt, front.tokenizer.vocab_size)
        return await off_loop.decode(front.tokenizer, prompt, skip_special_tokens=True)

    def _max_tokens(asked: CompletionRequest, prompt_len: int) -> int:
        if asked.max_tokens is not None:
            return asked.max_tokens
        wanted = max(DEFAULT_MAX_TOKENS, asked.min_tokens or 0)
        if front.max_seq_len is None:
            return wanted
        return max(1, min(wanted, front.max_seq_len - prompt_len))

    return router
