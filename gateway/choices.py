"""All answers to one request."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from gateway.bounds import check_num_choices
from gateway.generation import Event, Generation, GenerationRequest, Started
from gateway.side_by_side import side_by_side
from gateway.submission import Manager
from gateway.tokenizer import Tokenizer
from servicekit.errors import PagewireError


class Choices:
    """As many generations as the request asks for, each of its own draws. `events()` is consumed
    once; leaving it early, or a failure of one, cancels them all.
    """

    def __init__(self, manager: Manager, tokenizer: Tokenizer, request: GenerationRequest) -> None:
        """Errors: those of `check_num_choices` and of `Generation`."""
        check_num_choices(request.num_choices)
        first = Generation(manager, tokenizer, request)
        further = range(1, request.num_choices)
        self._generations = [first, *(first.further_choice(choice) for choice in further)]

    async def events(self) -> AsyncGenerator[Event, None]:
        """Started once, when the manager took them all; what each says; Finished of each."""
        if len(self._generations) == 1:  # most often: without a task of its own
            async with aclosing(self._generations[0].events()) as events:
                async for event in events:
                    yield event
            return
        all_events = side_by_side([generation.events() for generation in self._generations])
        told = False
        async with aclosing(all_events) as said:
            async for _, event in said:
                if isinstance(event, Started):  # the first event is one; by now they all did
                    if told:
                        continue
                    told = True
                yield event

    def cancel(self, why: PagewireError) -> bool:
        """`Generation.cancel` of each. False: none was left."""
        cancelled = [generation.cancel(why) for generation in self._generations]
        return any(cancelled)
