"""A bound on what one request may make us hold."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from servicekit.errors import Cancelled, Reason, ResourceExhausted

DISCARDED_BODIES = (
    16  # of the longest that is allowed: so much is read and dropped before a refusal
)


class BodyLimit:
    """Reads a body whole before anybody sees the request."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Errors: ResourceExhausted for a longer one, Cancelled when the client leaves before its
        end.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        unread: Message | None = {
            "type": "http.request",
            "body": await self._body(scope["headers"], receive),
            "more_body": False,
        }

        async def receive_again() -> Message:
            nonlocal unread
            if unread is None:
                return await receive()
            message, unread = unread, None
            return message

        await self._app(scope, receive_again, send)

    async def _body(self, headers: Iterable[tuple[bytes, bytes]], receive: Receive) -> bytes:
        if dict(headers).get(b"expect", b"").lower() == b"100-continue":
            told = int(dict(headers).get(b"content-length", b"0"))
            if told > self._max_bytes:
                raise self._too_large(told)  # it asks before it sends: no need to read
        body, num_bytes, more = bytearray(), 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Cancelled(Reason.CANCELLED, "the client left before its request was complete")
            more = message.get("more_body", False)
            num_bytes += len(message.get("body", b""))
            if num_bytes <= self._max_bytes:
                body += message.get("body", b"")
            elif num_bytes > DISCARDED_BODIES * self._max_bytes:
                break
        if num_bytes > self._max_bytes:
            # Only now: a client that still sends would find its connection reset, not our answer.
            raise self._too_large(num_bytes)
        return bytes(body)

    def _too_large(self, num_bytes: int) -> ResourceExhausted:
        return ResourceExhausted(
            Reason.MESSAGE_TOO_LARGE,
            f"the body has {num_bytes} bytes or more, over max_message_bytes {self._max_bytes}: "
            "send a shorter one",
        )
