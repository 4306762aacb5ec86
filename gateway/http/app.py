"""The application: routes, and what stands around them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from gateway.api_keys import ApiKeys
from gateway.front import Front
from gateway.http.about import about_routes
from gateway.http.body_limit import BodyLimit
from gateway.http.chat import chat_routes
from gateway.http.chat_request import ChatRequest
from gateway.http.completion_request import CompletionRequest
from gateway.http.completions import completion_routes
from gateway.http.edge import Edge
from gateway.http.fields import Asked
from gateway.http.key_check import KeyCheck
from gateway.http.refusal import refuse_fields, refuse_request
from gateway.http.token_requests import DetokenizeRequest, TokenizeRequest
from gateway.http.tokens import token_routes


def create_app(front: Front, max_message_bytes: int, keys: ApiKeys | None = None) -> FastAPI:
    """Serves `front` to whoever asks in OpenAI's words; with `keys`, to whoever has one."""
    app = FastAPI(
        title="Pagewire",
        description="OpenAI's HTTP API over one model.",
        version="v1",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    for routes in (chat_routes, completion_routes, token_routes, about_routes):
        app.include_router(routes(front))
    app.add_exception_handler(RequestValidationError, refuse_fields)
    app.add_exception_handler(HTTPException, refuse_request)
    app.add_middleware(BodyLimit, max_bytes=max_message_bytes)
    if keys is not None:
        app.add_middleware(KeyCheck, keys=keys)
    app.add_middleware(Edge, totals=front.totals)  # the last one added is the outermost
    _name_model(app.openapi(), front.model.name)
    return app


def _name_model(document: dict[str, Any], name: str) -> None:
    """Says wherever a model is asked for which one there is."""
    (path,) = document["paths"]["/v1/models/{model}"]["get"]["parameters"]
    path["schema"]["enum"] = [name]
    allowed: dict[type[Asked], list[str | None]] = {
        ChatRequest: [name],
        CompletionRequest: [name],
        TokenizeRequest: [name, None],
        DetokenizeRequest: [name, None],
    }
    for request, names in allowed.items():
        schema = document["components"]["schemas"][request.__name__]
        schema["properties"]["model"]["enum"] = names
