"""What becomes of a request, on whatever surface it came in: a name, an answer, a line in the log,
a place in the totals.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeAlias

import structlog

from gateway.choices import Choices
from gateway.generation import Event, Finished, GenerationRequest
from gateway.intake import Intake
from gateway.live_requests import LiveRequests
from gateway.submission import Manager
from gateway.tokenizer import Tokenizer
from gateway.totals import Totals

log = structlog.get_logger()

Make: TypeAlias = Callable[[str], Awaitable[GenerationRequest]]  # given the request's name


class Answering:
    """Answers over one manager and one model."""

    def __init__(
        self,
        manager: Manager,
        tokenizer: Tokenizer,
        live: LiveRequests,
        totals: Totals,
        intake: Intake | None = None,
    ) -> None:
        """Without `intake`, as many as come, for as long as they take."""
        self._manager = manager
        self._tokenizer = tokenizer
        self._live = live
        self._totals = totals
        self._intake = intake or Intake()

    async def events_of(self, request_id: str, make: Make) -> AsyncGenerator[Event, None]:
        """Those of `Choices`, of the request that `make` gives once its name is taken: "" is given
        one. Errors: theirs, those of `make`, of `LiveRequests.claimed` and of `Intake.taken`.
        """
        ends: list[Finished] = []
        with (
            self._live.claimed(request_id) as live,
            self._intake.taken(live.end),
            self._totals.answer() as note,
            structlog.contextvars.bound_contextvars(req_id=live.request_id),
        ):
            try:
                request = await make(live.request_id)
                choices = Choices(self._manager, self._tokenizer, request)
                live.ends_by(choices.cancel)
                async with aclosing(choices.events()) as events:
                    async for event in events:
                        note(event)
                        if isinstance(event, Finished):
                            ends.append(event)
                        yield event
            finally:
                log.info(
                    "request ended",
                    reason=" ".join(end.reason.value for end in ends) or "not finished",
                    completion_tokens=sum(end.completion_tokens for end in ends) if ends else None,
                )
