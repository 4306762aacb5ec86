"""Tokens of one request on their way from session to stream, merged until they are taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from gateway.token_logprob import TokenLogprob
from servicekit.errors import PagewireError


class EndCause(Enum):
    """Names of cache.proto's FinishCause that are no failure, without their prefix."""

    STOP_TOKEN = "STOP_TOKEN"  # noqa: S105 # not a secret
    MAX_TOKENS = "MAX_TOKENS"
    CACHE_FULL = "CACHE_FULL"


class Taken(NamedTuple):
    """Everything since the last take; `ended` when no more will come."""

    token_ids: list[int]
    ended: EndCause | None
    sent_at_us: int | None = None  # when the manager sent the first of them; see cache.proto


class TokenFeed:
    """One writer, the session, until a cancel; one reader, the stream. A slow reader takes more at
    once, and nobody waits for it.
    """

    def __init__(self, key: int) -> None:
        self.key = key
        self._cached_tokens: int | None = None
        self._token_ids: list[int] = []  # all that came
        self._taken_len = 0  # so many of them were taken
        self._sent_at_us: int | None = None  # of the first of the others
        self._logprobs: deque[TokenLogprob] = deque()  # of tokens, taken or not
        self._accepted = False
        self._ended: EndCause | None = None
        self._failure: PagewireError | None = None
        self._changed = asyncio.Event()

    @property
    def over(self) -> bool:
        """The manager knows the request no more."""
        return self._ended is not None or self._failure is not None

    @property
    def received_ids(self) -> Sequence[int]:
        """All tokens that came, taken or not."""
        return self._token_ids

    @property
    def cached_tokens(self) -> int:
        """Of the prompt, found in the cache; known once admitted."""
        return self._cached_tokens or 0

    def put_accepted(self) -> None:
        self._accepted = True
        self._changed.set()

    def put_admitted(self, cached_tokens: int) -> None:
        """It got a row. Only the first one counts: later ones find what it computed itself."""
        if self._cached_tokens is None:
            self._cached_tokens = cached_tokens

    def put_token(self, token_id: int, sent_at_us: int | None = None) -> None:
        if len(self._token_ids) == self._taken_len:
            self._sent_at_us = sent_at_us
        self._token_ids.append(token_id)
        self._changed.set()

    def put_logprob(self, logprob: TokenLogprob) -> None:
        """Of the next token that has none yet; with the token, or right after it."""
        self._logprobs.append(logprob)

    def take_logprobs(self, count: int) -> tuple[TokenLogprob, ...]:
        """Those of the next `count` tokens, where the request asked for them."""
        return tuple(self._logprobs.popleft() for _ in range(min(count, len(self._logprobs))))

    def put_end(self, cause: EndCause) -> None:
        self._ended = cause
        self._changed.set()

    def put_failure(self, failure: PagewireError) -> None:
        self._failure = failure
        self._changed.set()

    async def accepted(self) -> None:
        """Return when the manager took the request. Errors: what it was rejected with."""
        while not (self._accepted or self.over):
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None and not self._accepted:
            raise self._failure

    async def take(self) -> Taken:
        """What came since the last call, at least one token or the end. Errors: what the request
        failed with.
        """
        while len(self._token_ids) == self._taken_len and not self.over:
            self._changed.clear()
            await self._changed.wait()
        token_ids = self._token_ids[self._taken_len :]
        self._taken_len = len(self._token_ids)
        if self._failure is not None and not token_ids:
            raise self._failure
        sent_at_us = self._sent_at_us if token_ids else None
        return Taken(token_ids, self._ended if self._failure is None else None, sent_at_us)
