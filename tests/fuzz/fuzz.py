"""Everything bad that we can think of, at one running system, and what became of it."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import NamedTuple

from tests.fuzz.calls import CallFigures, send_inputs
from tests.fuzz.documented_http import send_documented
from tests.fuzz.fuzzed_system import FuzzedSystem
from tests.fuzz.http_figures import HttpFigures
from tests.fuzz.odd_requests import LEFT
from tests.fuzz.raw_http import send_raw
from tests.fuzz.steady_neighbour import Heard, steady_neighbour

NOT_REFUSED = {"OK", "CANCELLED", "DEADLINE_EXCEEDED", "200", "307", LEFT}


class Counts(NamedTuple):
    """How much of each is sent; a count of 0 leaves it out."""

    grpc: int = 0
    raw_http: int = 0
    examples: int = 0  # a route and mode, of requests drawn from the document


class Outcome(NamedTuple):
    grpc: CallFigures
    http: HttpFigures
    heard: Heard
    troubles: list[str]  # of the system, and findings

    @property
    def kinds(self) -> dict[str, dict[str, int]]:
        """How many inputs, by service or route and by kind."""
        found: dict[str, dict[str, int]] = defaultdict(dict)
        for (surface, kind), count in sorted((self.grpc.kinds + self.http.kinds).items()):
            found[surface][kind] = count
        return dict(found)

    @property
    def codes(self) -> Counter[str]:
        return self.grpc.codes + self.http.codes

    @property
    def refused(self) -> int:
        """Inputs that were bad for certain."""
        return sum(count for code, count in self.codes.items() if code not in NOT_REFUSED)


async def fuzz(system: FuzzedSystem, seed: int, counts: Counts) -> Outcome:
    """Sends it all, beside a neighbour. Errors: those of `send_documented`."""
    grpc, http = CallFigures(), HttpFigures()
    async with steady_neighbour(system) as heard:
        await send_inputs(system.address, seed, counts.grpc, grpc)
        if not system.deaths:
            await asyncio.to_thread(_send_http, system.http_address, seed, counts, http)
    troubles = [*grpc.findings, *http.findings, *await system.troubles()]
    if heard.others:
        troubles.append(f"the neighbour heard {heard.others} other answers of {heard.answers}")
    return Outcome(grpc, http, heard, troubles)


def _send_http(address: str, seed: int, counts: Counts, figures: HttpFigures) -> None:
    send_raw(address, seed, counts.raw_http, figures)
    if counts.examples:
        send_documented(address, seed, counts.examples, figures)
