"""Server-sent events, as OpenAI's clients read them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from fastapi.responses import Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from gateway.http.errors import error_answer, known
from gateway.http.until_gone import until_gone
from servicekit.errors import Reason
from servicekit.reader_patience import reader_patience

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # for proxies, nginx above all
DONE = b"data: [DONE]\n\n"


class EventStream(Response):
    """Chunks, then [DONE]; or an `error` event where they fail, which is the last one."""

    media_type = "text/event-stream"

    def __init__(
        self,
        first: BaseModel,
        rest: AsyncGenerator[BaseModel, None],
        cut: asyncio.Event,
        params: Mapping[str, str],
        max_stall_s: float,
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._cut = cut
        self._params = params
        self._max_stall_s = max_stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all. Errors: none, but the code of a failure is left in the scope for the totals."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            await until_gone(self._send_chunks(send), receive, self._cut)
            last = DONE
        except Exception as failure:  # noqa: BLE001 # the status is sent: it can only be told here
            error = known(failure)
            scope["state"]["code"] = error.code_name
            if error.reason is Reason.READER_STALLED:
                return  # there is no telling it anything; the server closes the connection
            last = b"event: error\n" + _event(error_answer(error, self._params))
        await send({"type": "http.response.body", "body": last})

    async def _send_chunks(self, send: Send) -> None:
        async with reader_patience(self._max_stall_s) as patience, aclosing(self._rest):
            chunk: BaseModel | None = self._first
            while chunk is not None:
                body = {"type": "http.response.body", "body": _event(chunk), "more_body": True}
                await patience.taken(send(body))
                chunk = await anext(self._rest, None)


def _event(answer: BaseModel) -> bytes:
    return b"data: " + answer.model_dump_json(exclude_unset=True).encode() + b"\n\n"
