"""POST /v1/completions."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gateway import off_loop
from gateway.generation import GenerationRequest
from gateway.http.answers import Completion
from gateway.http.completion_request import DEFAULT_MAX_TOKENS, CompletionRequest, Prompt
from gateway.http.documented import STREAMED
from gateway.http.forms import CompletionForm
from gateway.http.front import Front
from gateway.http.refusal import JsonRoute
from gateway.http.reply import replied
from gateway.traceparent import traceparent_of


def completion_routes(front: Front) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/completions", response_model=Completion, responses=STREAMED)
    async def create_completion(asked: CompletionRequest, request: Request) -> Response:
        """Continues a prompt, or several."""
        request.state.params = {}
        front.check_model(asked.model)
        answer_id = f"cmpl-{secrets.token_hex(12)}"
        form = CompletionForm(
            answer_id, int(time.time()), front.model.name, with_usage=asked.include_usage
        )
        return await replied(
            request,
            front,
            await _generations(asked, answer_id, request),
            form,
            stream=asked.stream,
            include_usage=asked.include_usage,
        )

    async def _generations(
        asked: CompletionRequest, answer_id: str, request: Request
    ) -> list[GenerationRequest]:
        prompts = asked.prompts()
        generations = []
        for idx, prompt in enumerate(prompts):
            prompt_ids = await _ids(prompt)
            generation = asked.generation_request(
                request_id=answer_id if len(prompts) == 1 else f"{answer_id}-{idx}",
                prompt_ids=prompt_ids,
                max_tokens=_max_tokens(asked.max_tokens, len(prompt_ids)),
                traceparent=traceparent_of(request.headers.items()),
            )
            generations.append(generation)
            await asyncio.sleep(0)  # others go on
        return generations

    async def _ids(prompt: Prompt) -> Sequence[int]:
        if not isinstance(prompt, str):
            return prompt
        return await off_loop.encode(front.tokenizer, prompt) if prompt else []

    def _max_tokens(asked: int | None, prompt_len: int) -> int:
        if asked is not None:
            return asked
        if front.max_seq_len is None:
            return DEFAULT_MAX_TOKENS
        return max(1, min(DEFAULT_MAX_TOKENS, front.max_seq_len - prompt_len))

    return router
