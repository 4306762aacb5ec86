"""What becomes of a request, on whatever surface it came in: a name, an answer, a line in the log,
a place in the totals.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import structlog

from gateway.generation import Event, Finished, Generation, GenerationRequest
from gateway.intake import Intake
from gateway.live_requests import LiveRequests
from gateway.submission import Manager
from gateway.tokenizer import Tokenizer
from gateway.totals import Totals

log = structlog.get_logger()


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

    def events(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Those of `Generation`; its errors, and those of `LiveRequests.claimed` and
        `Intake.taken`.
        """

        async def made(request_id: str) -> GenerationRequest:
            return request

        return self.events_of(request.request_id, made)

    async def events_of(
        self, request_id: str, make: Callable[[str], Awaitable[GenerationRequest]]
    ) -> AsyncGenerator[Event, None]:
        """The like, of a request that `make` gives, once its name is taken: "" is given one."""
        finished: Finished | None = None
        with (
            self._live.claimed(request_id) as live,
            self._intake.taken(live.end),
            self._totals.answer() as note,
            structlog.contextvars.bound_contextvars(req_id=live.request_id),
        ):
            try:
                request = await make(live.request_id)
                generation = Generation(self._manager, self._tokenizer, request)
                live.ends_by(generation.cancel)
                async with aclosing(generation.events()) as events:
                    async for event in events:
                        note(event)
                        if isinstance(event, Finished):
                            finished = event
                        yield event
            finally:
                log.info(
                    "request ended",
                    reason=finished.reason.value if finished else "not finished",
                    completion_tokens=finished.completion_tokens if finished else None,
                )
