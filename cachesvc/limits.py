"""What an operator decides of the manager."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Of queue, step and plan stream."""

    step_budget_tokens: int
    credits: int | None  # plans sent ahead of their results; None: what hides the way
    max_waiting: int = 4096  # requests in the queue
    long_prefill_tokens: int | None = None  # more than that to go is long; None: the step's budget
    max_long_prefills: int = 1  # at once
    aging_s: float = 10.0  # a request that waits so long is as good as one of the next class
    share_stride_tokens: int = 64  # what a row samples is shared so many at a time, or a page
    runner_silence_s: float = 10.0  # and what the work sent should take, several times over
    want_digests: bool = False  # of the page table, with every result

    @property
    def long_len(self) -> int:
        given = self.long_prefill_tokens
        return self.step_budget_tokens if given is None else given
