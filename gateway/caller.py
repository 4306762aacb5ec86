"""Who asks: the name of the API key that a call came with, for as long as the call lasts."""

from __future__ import annotations

from contextvars import ContextVar

import structlog

NOBODY = ""  # the name of all callers, where there are no keys
_CALLER: ContextVar[str] = ContextVar("caller", default=NOBODY)


def caller() -> str:
    return _CALLER.get()


def is_called_by(name: str) -> None:
    """From now on the call is `name`'s, in its log lines too."""
    _CALLER.set(name)
    structlog.contextvars.bind_contextvars(caller=name)
