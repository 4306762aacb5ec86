"""What the routes of every protocol stand on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from gateway.answering import Answering
from gateway.served_model import ServedModel, check_served
from gateway.submission import Limits
from gateway.tokenizer import Tokenizer
from gateway.totals import Totals
from servicekit.reader_patience import MAX_STALL_S


class Chain(Protocol):
    """The way to the manager and the runner: `CacheClient`."""

    @property
    def serving(self) -> bool:
        """Whether all of it is there."""

    @property
    def draining(self) -> bool:
        """Whether no new request is taken, for good."""

    @property
    def limits(self) -> Limits | None:
        """Of the runner seen last; None before the first one."""


@dataclass(frozen=True, slots=True)
class Front:
    """One model, and everything that answers in its name."""

    model: ServedModel
    created_s: int  # when it began to be served, in seconds since 1970
    tokenizer: Tokenizer
    chain: Chain
    answering: Answering
    totals: Totals
    max_stall_s: float = MAX_STALL_S  # of a stream that nobody reads
    cut: asyncio.Event = field(default_factory=asyncio.Event)  # set: no more time for answers

    @property
    def max_seq_len(self) -> int | None:
        limits = self.chain.limits
        return None if limits is None else limits.max_seq_len

    def check_model(self, asked: str | None) -> None:
        """Errors: NotFound when it is another one; None is any."""
        check_served(asked or "", self.model.name)
