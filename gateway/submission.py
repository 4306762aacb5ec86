"""What a stream asks of the manager, whatever carries it there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gateway.token_feed import TokenFeed
from servicekit.sampling import Sampling


class Submission(NamedTuple):
    """A request as the manager takes it."""

    request_id: str
    prompt_ids: Sequence[int]
    sampling: Sampling
    max_tokens: int | None
    stop_token_ids: Sequence[int]
    min_tokens: int = 0  # before so many are sampled, none of these is
    remaining_s: float | None = None  # how long the answer is of use; None: for ever
    traceparent: str = ""  # W3C trace context of the caller; "": none
    priority: int = 0  # class: higher ones are admitted first and preempted last
    cache_salt: str = ""  # only requests with the same one share cached pages
    choice: int = 0  # which of the answers to one prompt
    first_choice: TokenFeed | None = None  # of the same prompt, when this one is another
    resume_token_ids: Sequence[int] = ()  # the answer's first ones, sampled before
    age_s: float | None = None  # since it was taken, where an earlier session had it


class Limits(NamedTuple):
    """What the runner behind the manager allows."""

    max_seq_len: int  # prompt and answer together
    pool_tokens: int


class Manager(Protocol):
    """`CacheClient` speaks to a real one."""

    @property
    def limits(self) -> Limits | None:
        """Of the runner seen last; None before the first one."""

    def submit(self, submission: Submission) -> TokenFeed:
        """Hand a request over. Errors: Unavailable without a session; the feed raises what the
        manager answers.
        """

    def stop(self, feed: TokenFeed, kept_tokens: int) -> None:
        """The answer is complete: a finish. Nothing happens for a feed that is over."""

    def cancel(self, feed: TokenFeed) -> None:
        """Nobody wants the answer: an abort. Nothing happens for a feed that is over."""
