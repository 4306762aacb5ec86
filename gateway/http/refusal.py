"""What FastAPI, Starlette and pydantic refuse, as our errors: one sentence that names the field."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NoReturn

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.exceptions import HTTPException

from gateway.http.errors import ErrorAnswer, ErrorObject, json_response, type_of
from servicekit.errors import InvalidArgument, Reason
from servicekit.quoting import MAX_QUOTED_CHARS, quoted, shortened


class JsonRequest(Request):
    """A request whose body is JSON to the letter: no text in it that is no Unicode."""

    async def json(self) -> Any:
        """Errors: ValueError says what is wrong, and where."""
        return from_json(await self.body())


class JsonRoute(APIRoute):
    """A route that gets its requests as such."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def answer_json(request: Request) -> Response:
            return await answer(JsonRequest(request.scope, request.receive))

        return answer_json


async def refuse_fields(request: Request, error: Exception) -> NoReturn:
    """Errors: InvalidArgument, for the first of the fields that pydantic found wrong."""
    assert isinstance(error, RequestValidationError)
    raise invalid_field(error.errors()[0], known_fields(request)) from error


async def refuse_request(request: Request, error: Exception) -> Response:
    """The answer to a path or a method that there is none of.

    Errors: InvalidArgument for a body that is no JSON.
    """
    assert isinstance(error, HTTPException)
    if error.status_code == 400:
        why = error.__cause__ or error.detail
        raise InvalidArgument(Reason.INVALID_FIELD, f"the body is not JSON: {why}") from error
    request.scope["state"]["code"] = "INVALID_ARGUMENT"
    what = f"{request.method} {shortened(request.url.path)}"
    said = {404: f"{what}: there is no such path", 405: f"{what}: the path has other methods"}
    answer = ErrorObject(
        message=said.get(error.status_code, error.detail),
        type=type_of(error.status_code),
        param=None,
        code=None,
    )
    return json_response(ErrorAnswer(error=answer), error.status_code, error.headers)


def invalid_field(found: Mapping[str, Any], known: Sequence[str]) -> InvalidArgument:
    """`found` is one of pydantic's errors; `known` are the fields that a misspelt one may mean."""
    written = _param_of(found["loc"][1:])
    param = shortened(written)
    kind = found["type"]
    if not param:
        return InvalidArgument(
            Reason.INVALID_FIELD,
            "the body must be a JSON object, sent with Content-Type: application/json",
        )
    if kind == "missing":
        return _about(param, f"{param} is missing")
    if kind == "extra_forbidden":
        may_mean = known if len(written) <= MAX_QUOTED_CHARS else ()
        close = difflib.get_close_matches(written, may_mean, n=1)
        hint = f": did you mean {close[0]}?" if close else ""
        return _about(param, f"{param} is no field of this request{hint}")
    if kind == "not_served":
        return _about(param, f"{param} is not supported yet: {found['msg']}")
    rule = re.sub(r"^\w+ should", "it should", found["msg"])
    return _about(param, f"{param} is {quoted(found['input'])}; {rule}")


def _about(param: str, message: str) -> InvalidArgument:
    return InvalidArgument(Reason.INVALID_FIELD, message, field=param)


def _param_of(loc: Sequence[int | str]) -> str:
    """As the caller would write it: `messages[0].content`."""
    parts = (
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc if part != "[key]"
    )
    return "".join(parts).removeprefix(".")


def known_fields(request: Request) -> Sequence[str]:
    """Of the body that this route takes."""
    field = getattr(request.scope.get("route"), "body_field", None)
    return () if field is None else tuple(field.field_info.annotation.model_fields)
