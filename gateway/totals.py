"""What the gateway counts of its requests, for whoever asks: plain numbers, added to as answers go
by.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gateway.generation import Event, Finished, Started
from gateway.text_stream import Delta
from servicekit.errors import PagewireError

FIRST_TOKEN_BOUNDS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
NEXT_TOKEN_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


class Times:
    """A histogram of times."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        """`bounds_s`: the upper ends of the buckets, rising; one more bucket has no end."""
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def note(self, seconds: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds_s, seconds)] += times
        self.sum_s += seconds * times


class Totals:
    """Since the process started."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.requests: Counter[tuple[str, str]] = Counter()  # by (surface, code that they end with)
        self.live_answers = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0  # of them
        self.completion_tokens = 0
        self.first_token = Times(FIRST_TOKEN_BOUNDS_S)  # from the request on
        self.next_token = Times(NEXT_TOKEN_BOUNDS_S)  # from the token before it on

    @contextmanager
    def request(self, surface: str) -> Iterator[None]:
        """Counts a request, when the context ends, with the code that it ends with."""
        code = "CANCELLED"  # unless it ends otherwise
        try:
            yield
            code = "OK"
        except PagewireError as failure:
            code = failure.code_name
            raise
        except Exception:
            code = "INTERNAL"
            raise
        finally:
            self.requests[surface, code] += 1

    @contextmanager
    def answer(self) -> Iterator[Callable[[Event], None]]:
        """Counts an answer as live for as long as the context lasts; give it each event."""
        self.live_answers += 1
        last_s, tokens = self._clock(), 0

        def note(event: Event) -> None:
            nonlocal last_s, tokens
            if isinstance(event, Started):
                self.prompt_tokens += event.prompt_tokens
            elif isinstance(event, Finished):
                self.cached_tokens += event.cached_tokens
                self.completion_tokens += event.completion_tokens - tokens
            elif event.token_ids:
                now_s = self._clock()
                self._note_times(event, now_s - last_s, is_first=tokens == 0)
                last_s = now_s
                tokens += len(event.token_ids)
                self.completion_tokens += len(event.token_ids)

        try:
            yield note
        finally:
            self.live_answers -= 1

    def _note_times(self, delta: Delta, seconds: float, *, is_first: bool) -> None:
        """Tokens that come together share their time."""
        if is_first:
            self.first_token.note(seconds)
        else:
            self.next_token.note(seconds / len(delta.token_ids), len(delta.token_ids))
