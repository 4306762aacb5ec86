"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gateway.front import Front
from gateway.generation import GenerationRequest
from gateway.http.answers import ChatCompletion
from gateway.http.chat_form import ChatForm
from gateway.http.chat_request import ChatRequest, turns_for_template
from gateway.http.documented import STREAMED
from gateway.http.refusal import JsonRoute
from gateway.http.reply import Question, replied
from gateway.prompt import prompt_ids_of
from gateway.token_texts import TokenTexts
from gateway.traceparent import traceparent_of


def chat_routes(front: Front) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)
    texts = TokenTexts(front.tokenizer)

    @router.post("/v1/chat/completions", response_model=ChatCompletion, responses=STREAMED)
    async def create_chat_completion(asked: ChatRequest, request: Request) -> Response:
        """Answers a conversation."""
        newer = asked.max_completion_tokens
        request.state.params = {"prompt": "messages", "sampling.logprobs": "top_logprobs"}
        if newer is not None:
            request.state.params["stop.max_tokens"] = "max_completion_tokens"
        front.check_model(asked.model)

        async def make(request_id: str) -> GenerationRequest:
            turns = turns_for_template(asked.messages)
            return asked.generation_request(
                request_id=request_id,
                prompt_ids=await prompt_ids_of(front.tokenizer, turns, tools=asked.offered_tools()),
                max_tokens=asked.max_tokens if newer is None else newer,
                traceparent=traceparent_of(request.headers.items()),
            )

        answer_id = f"chatcmpl-{secrets.token_hex(12)}"
        form = ChatForm(
            answer_id, int(time.time()), front.model.name, texts, with_usage=asked.include_usage
        )
        return await replied(request, front, asked, [Question(answer_id, make)], form)

    return router
