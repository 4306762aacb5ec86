"""How often the books did not add up, and what became of it."""

from __future__ import annotations

from typing import NamedTuple

import structlog

from cachesvc.integrity import Recount, heal, recount
from cachesvc.request import Req
from cachesvc.scheduler import Scheduler

log = structlog.get_logger()

MAX_IN_A_ROW = 3
PLANS_THAT_HELD = 1000  # in a row: what was healed lasts


class Healed(NamedTuple):
    """What was wrong, in words, and the requests that touched a page claimed twice: they fail."""

    violations: list[str]
    touched: list[Req]


class Healer:
    """Counts the times that it had to heal. A recount that finds nothing ends a row of them, and so
    do many plans whose counters add up.
    """

    def __init__(self) -> None:
        self.healed_total = 0
        self._in_a_row = 0
        self._held_plans = 0

    @property
    def may_serve(self) -> bool:
        """Not once healing does not last."""
        return self._in_a_row < MAX_IN_A_ROW

    def held(self) -> None:
        """A plan's counters add up."""
        self._held_plans += 1
        if self._held_plans >= PLANS_THAT_HELD:
            self._in_a_row = 0

    def check(self, scheduler: Scheduler) -> Healed:
        """Recount every page, and heal what does not add up."""
        found = recount(scheduler.manager)
        if not found.violations:
            self._in_a_row = 0
            return Healed([], [])
        return self.heal(scheduler, found)

    def heal(self, scheduler: Scheduler, found: Recount) -> Healed:
        manager = scheduler.manager
        told = [violation.told(manager) for violation in found.violations]
        for violation in told:
            log.error("page accounting failed", violation=violation)
        self.healed_total += 1
        self._in_a_row += 1
        self._held_plans = 0
        rows = heal(manager, found)
        touched = [req for idx in rows if (req := manager.rows.req[idx]) is not None]
        scheduler.finish_what_no_longer_fits()
        return Healed(told, touched)
