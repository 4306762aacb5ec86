"""What becomes of a request, on whatever surface it came in: a name, an answer, a line in the log,
a place in the totals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeAlias

import structlog

from gateway.choices import Choices
from gateway.generation import Event, Finished, GenerationRequest
from gateway.intake import Intake
from gateway.live_requests import LiveRequests
from gateway.submission import Manager
from gateway.text_stream import Delta
from gateway.tokenizer import Tokenizer
from gateway.totals import Totals
from servicekit.errors import PagewireError, Reason

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
        ends: Counter[str] = Counter()
        completion_tokens = 0
        with (
            self._live.claimed(request_id) as live,
            self._intake.taken(live.end) as take,
            self._totals.answer() as note,
            structlog.contextvars.bound_contextvars(req_id=live.request_id),
        ):
            try:
                request = await make(live.request_id)
                take(request.num_choices - 1)
                choices = Choices(self._manager, self._tokenizer, request)
                live.ends_by(choices.cancel)
                async with aclosing(choices.events()) as events:
                    async for event in events:
                        note(event)
                        if isinstance(event, Finished):
                            ends[event.reason.value] += 1
                        elif isinstance(event, Delta):
                            completion_tokens += len(event.token_ids)
                        yield event
            except PagewireError as failure:
                ends[failure.reason.value] += 1
                raise
            except Exception:
                ends[Reason.INTERNAL.value] += 1
                raise
            except BaseException:
                ends["LEFT"] += 1  # whoever asked went away
                raise
            finally:
                log.info(
                    "request ended",
                    reason=", ".join(f"{why} x {n}" if n > 1 else why for why, n in ends.items()),
                    completion_tokens=completion_tokens,
                )
