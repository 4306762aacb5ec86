"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gateway import off_loop
from gateway.http.answers import ChatCompletion
from gateway.http.chat_request import ChatRequest, turns_for_template
from gateway.http.documented import STREAMED
from gateway.http.forms import ChatForm
from gateway.http.front import Front
from gateway.http.refusal import JsonRoute
from gateway.http.reply import replied
from gateway.token_texts import TokenTexts
from gateway.traceparent import traceparent_of


def chat_routes(front: Front) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)
    texts = TokenTexts(front.tokenizer)

    @router.post("/v1/chat/completions", response_model=ChatCompletion, responses=STREAMED)
    async def create_chat_completion(asked: ChatRequest, request: Request) -> Response:
        """Answers a conversation."""
        max_tokens = asked.max_completion_tokens
        request.state.params = {"prompt": "messages", "sampling.logprobs": "top_logprobs"}
        if max_tokens is not None:
            request.state.params["stop.max_tokens"] = "max_completion_tokens"
        front.check_model(asked.model)
        generation = asked.generation_request(
            request_id=f"chatcmpl-{secrets.token_hex(12)}",
            prompt_ids=await off_loop.encode_chat(
                front.tokenizer, turns_for_template(asked.messages), tools=asked.offered_tools()
            ),
            max_tokens=asked.max_tokens if max_tokens is None else max_tokens,
            traceparent=traceparent_of(request.headers.items()),
        )
        form = ChatForm(
            generation.request_id,
            int(time.time()),
            front.model.name,
            texts,
            with_usage=asked.include_usage,
        )
        return await replied(
            request,
            front,
            [generation],
            form,
            stream=asked.stream,
            include_usage=asked.include_usage,
        )

    return router
