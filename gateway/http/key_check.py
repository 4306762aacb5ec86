"""API keys of HTTP requests."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api_keys import ApiKeys

OPEN = ("/health", "/ready", "/openapi.json")  # to whoever asks


class KeyCheck:
    """Refuses requests without a key before anything of their bodies is read."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Errors: Unauthenticated."""
        if scope["type"] == "http" and scope["path"] not in OPEN:
            given = dict(scope["headers"]).get(b"authorization")
            self._keys.check(None if given is None else given.decode(errors="replace"))
        await self._app(scope, receive, send)
