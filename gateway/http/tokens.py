"""POST /tokenize and /detokenize: what the tokenizer makes of texts and ids; nothing runs."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gateway import off_loop
from gateway.front import Front
from gateway.http.chat_request import tools_for_template, turns_for_template
from gateway.http.documented import REFUSED
from gateway.http.errors import json_response
from gateway.http.refusal import JsonRoute
from gateway.http.token_requests import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
)
from gateway.http.until_gone import until_gone
from gateway.prompt import prompt_ids_of
from servicekit.errors import InvalidArgument, Reason


def token_routes(front: Front) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/tokenize", response_model=TokenizeAnswer, responses=REFUSED)
    async def tokenize(asked: TokenizeRequest, request: Request) -> Response:
        """Tells which ids a prompt, or a conversation, becomes."""
        front.check_model(asked.model)
        return await until_gone(_tokenized(asked), request.receive, front.cut)

    @router.post("/detokenize", response_model=DetokenizeAnswer, responses=REFUSED)
    async def detokenize(asked: DetokenizeRequest, request: Request) -> Response:
        """Tells the text of ids."""
        front.check_model(asked.model)
        decoding = off_loop.detokenize(
            front.tokenizer, "tokens", asked.tokens, skip_special_tokens=False
        )
        text = await until_gone(decoding, request.receive, front.cut)
        return json_response(DetokenizeAnswer(prompt=text))

    async def _tokenized(asked: TokenizeRequest) -> Response:
        ids = await _ids(asked)
        pieces = await off_loop.pieces_of(front.tokenizer, ids) if asked.return_token_strs else None
        most = front.max_seq_len

        def answer() -> Response:
            return json_response(
                TokenizeAnswer(tokens=ids, count=len(ids), token_strs=pieces, max_model_len=most)
            )

        return await asyncio.to_thread(answer) if len(ids) > off_loop.LONG_IDS else answer()

    async def _ids(asked: TokenizeRequest) -> list[int]:
        if (asked.prompt is None) == (asked.messages is None):
            raise InvalidArgument(
                Reason.INVALID_FIELD, "prompt or messages must be given, not both", field="prompt"
            )
        turns = None if asked.messages is None else turns_for_template(asked.messages)
        return await prompt_ids_of(
            front.tokenizer,
            turns or asked.prompt or "",
            tools=tools_for_template(asked.tools),
            add_special_tokens=asked.add_special_tokens,
        )

    return router
