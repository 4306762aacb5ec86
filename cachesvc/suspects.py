"""Requests that a runner may have died of: they are tried one at a time, and given up after two."""

from __future__ import annotations

from collections.abc import Iterable

from cachesvc.request import Req, ReqState
from cachesvc.rows import RowTable

MAX_RUNNER_DEATHS = 2


class Suspects:
    """A request that was being stepped when a runner died is a suspect until it gains a token.

    It gets a row when every row that runs has gained one, and until it has, nobody else gets any:
    so a runner that dies of it dies of nobody else, and those that were beside it the first time
    are cleared. The counts are of this manager: one that restarts begins anew.
    """

    def __init__(self) -> None:
        self._tried: Req | None = None  # admitted last

    def blame(self, stepped: Iterable[Req]) -> list[Req]:
        """A runner died with these in its plans. Returns those of which one did too often."""
        guilty: list[Req] = []
        for req in stepped:
            req.runner_deaths += 1
            if req.runner_deaths >= MAX_RUNNER_DEATHS:
                guilty.append(req)
        return guilty

    def may_get_a_row(self, req: Req, rows: RowTable) -> bool:
        """Whether neither it nor another one would be tried beside somebody."""
        if self._tried is not None and self._tried.state is ReqState.RUNNING:
            return False
        return not req.runner_deaths or not rows.any_without_a_token

    def admitted(self, req: Req) -> None:
        """It got a row."""
        self._tried = req if req.runner_deaths else None

    def tokens_came(self, rows: RowTable) -> None:
        """Requests gained tokens: the one that is tried may be cleared."""
        tried = self._tried
        if tried is None:
            return
        idx = tried.table_idx
        if tried.state is not ReqState.RUNNING or idx is None:
            self._tried = None
        elif rows.known_len[idx] > rows.opened_len[idx]:
            tried.runner_deaths = 0
            self._tried = None
