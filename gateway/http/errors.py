"""Failures as HTTP statuses with OpenAI's error object: the table that `servicekit.errors` has for
gRPC, in the words of the other surface.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import structlog
from fastapi.responses import Response
from pydantic import BaseModel

from servicekit.errors import Internal, PagewireError, Reason

log = structlog.get_logger()

STATUSES = {  # by canonical code
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
STATUS_OF_REASON = {Reason.MESSAGE_TOO_LARGE: 413}  # else its code decides
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
CODES = {  # what OpenAI's clients branch on; else the reason in lower case
    Reason.PROMPT_TOO_LONG: "context_length_exceeded",
    Reason.CONTEXT_TOO_LONG: "context_length_exceeded",
}
DOTTED = re.compile(r"\b(?:sampling|stop)\.[a-z_]+")  # fields of the engine in messages
PARAMS = {"stop.strings": "stop", "stop.token_ids": "stop_token_ids"}  # else what follows the dot


class ErrorObject(BaseModel):
    """What is wrong, and with which field."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """Every answer that is no 2xx."""

    error: ErrorObject


def status_of(error: PagewireError) -> int:
    return STATUS_OF_REASON.get(error.reason) or STATUSES.get(error.code_name, 500)


def error_answer(error: PagewireError, params: Mapping[str, str]) -> ErrorAnswer:
    """`params`: what the caller calls some of the engine's fields, beside PARAMS."""
    names = {**PARAMS, **params}

    def named(field: str) -> str:
        return names.get(field, field.rpartition(".")[2] if DOTTED.fullmatch(field) else field)

    status, field = status_of(error), error.metadata.get("field")
    return ErrorAnswer(
        error=ErrorObject(
            message=DOTTED.sub(lambda found: named(found[0]), error.message),
            type=type_of(status),
            param=None if field is None else named(field),
            code=CODES.get(error.reason, error.reason.lower()),
        )
    )


def type_of(status: int) -> str:
    return TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def error_response(error: PagewireError, params: Mapping[str, str]) -> Response:
    headers = {}
    if error.code_name == "UNAUTHENTICATED":
        headers["www-authenticate"] = "Bearer"
    if error.reason is Reason.RUNNER_DIED_TWICE:
        headers["x-should-retry"] = "false"  # OpenAI's clients send again what gets a 500, else
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    return json_response(error_answer(error, params), status_of(error), headers)


def json_response(
    answer: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """`answer` as JSON, with the fields that were given."""
    return Response(
        answer.model_dump_json(exclude_unset=True),
        status,
        dict(headers or {}),
        media_type="application/json",
    )


def known(error: Exception) -> PagewireError:
    """`error`, or what a client may know of a failure that nobody foresaw, which is logged."""
    if isinstance(error, PagewireError):
        return error
    log.error("request failed", exc_info=error)
    return Internal(Reason.INTERNAL, "the request failed inside the server; its log says why")
