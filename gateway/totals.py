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
        """Counts a request under `surface` and the code that the context ends with; CANCELLED where
        it is left.
        """
        code = "CANCELLED"
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
        """Counts an answer as live for as long as the context lasts; give it each event, of all
        its choices.
        """
        self.live_answers += 1
        began_s = self._clock()
        last_s: dict[int, float] = {}  # when each choice said its last tokens
        tokens: Counter[int] = Counter()  # that each has said

        def note(event: Event) -> None:
            if isinstance(event, Started):
                self.prompt_tokens += event.prompt_tokens
            elif isinstance(event, Finished):
                if event.choice == 0:  # the others find the prompt where it left it
                    self.cached_tokens += event.cached_tokens
                sampled = event.completion_tokens - event.resumed_tokens
                self.completion_tokens += sampled - tokens[event.choice]
            elif event.token_ids:
                now_s = self._clock()
                since_s = last_s.get(event.choice, began_s)
                self._note_times(event, now_s - since_s, is_first=event.choice not in last_s)
                last_s[event.choice] = now_s
                tokens[event.choice] += len(event.token_ids)
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
