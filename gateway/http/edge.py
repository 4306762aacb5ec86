"""The outermost layer: whatever happens below, a request is answered in one shape and counted."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.errors import error_response, known
from gateway.totals import Totals

COUNTED = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")


class Edge:
    def __init__(self, app: ASGIApp, totals: Totals) -> None:
        self._app = app
        self._totals = totals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["params"] = {}
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        code = "CANCELLED"
        try:
            await self._app(scope, receive, watched)
            code = state.get("code", "OK")
        except Exception as failure:  # noqa: BLE001 # the last resort of a request
            error = known(failure)
            code = error.code_name
            if not started:
                await error_response(error, state["params"])(scope, receive, send)
        finally:
            if scope["path"] in COUNTED:
                self._totals.requests[scope["path"], code] += 1
