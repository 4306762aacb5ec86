"""POST /tokenize and /detokenize: what the tokenizer makes of texts and ids; nothing runs."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gateway import off_loop
from gateway.http.chat_request import tools_for_template, turns_for_template
from gateway.http.documented import REFUSED
from gateway.http.errors import json_response
from gateway.http.front import Front
from gateway.http.refusal import JsonRoute
from gateway.http.token_requests import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
)
from gateway.id_bounds import check_detokenized
from servicekit.errors import InvalidArgument, Reason


def token_routes(front: Front) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/tokenize", response_model=TokenizeAnswer, responses=REFUSED)
    async def tokenize(asked: TokenizeRequest, request: Request) -> Response:
        """Tells which ids a prompt, or a conversation, becomes."""
        front.check_model(asked.model)
        ids = await _ids(asked)
        pieces = await off_loop.pieces_of(front.tokenizer, ids) if asked.return_token_strs else None
        return json_response(
            TokenizeAnswer(
                tokens=ids, count=len(ids), token_strs=pieces, max_model_len=front.max_seq_len
            )
        )

    @router.post("/detokenize", response_model=DetokenizeAnswer, responses=REFUSED)
    async def detokenize(asked: DetokenizeRequest, request: Request) -> Response:
        """Tells the text of ids."""
        front.check_model(asked.model)
        check_detokenized("tokens", asked.tokens, front.tokenizer.vocab_size)
        text = await off_loop.decode(front.tokenizer, asked.tokens, skip_special_tokens=False)
        return json_response(DetokenizeAnswer(prompt=text))

    async def _ids(asked: TokenizeRequest) -> list[int]:
        if (asked.prompt is None) == (asked.messages is None):
            raise InvalidArgument(
                Reason.INVALID_FIELD, "prompt or messages must be given, not both", field="prompt"
            )
        special = asked.add_special_tokens
        if asked.messages is not None:
            return await off_loop.encode_chat(
                front.tokenizer,
                turns_for_template(asked.messages),
                tools=tools_for_template(asked.tools),
                add_special_tokens=bool(special),
            )
        if not asked.prompt:
            raise InvalidArgument(Reason.EMPTY_PROMPT, "the prompt is empty", field="prompt")
        return await off_loop.encode(
            front.tokenizer, asked.prompt, add_special_tokens=special is not False
        )

    return router
