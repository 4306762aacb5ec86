"""Books that do not add up: found after every plan and on request, healed, and counted."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from cachesvc.integrity import BOOKS_FAULTS, Recount, heal, recount
from cachesvc.ledger import ChangeReason
from cachesvc.manager import CacheManager
from cachesvc.plan_stream import PlanStream
from cachesvc.request import Req
from cachesvc.scheduler import Scheduler
from cachesvc.step import Step
from cachesvc.story import PreemptionCause
from servicekit.plan import RunnerDescription

log = structlog.get_logger()

MAX_IN_A_ROW = 3
PLANS_THAT_HELD = 1000  # in a row: what was healed lasts


class Healer:
    """Counts the times that it had to heal. A recount that finds nothing ends a row of them, and so
    do many plans whose counters add up.

    Requests that touched a page claimed twice fail by way of `fail`. `distrust` is called where
    what was written down may be wrong.
    """

    def __init__(
        self,
        stream: PlanStream,
        empty_manager: Callable[[RunnerDescription], CacheManager],
        fail: Callable[[Req], None],
        distrust: Callable[[], None],
    ) -> None:
        self.healed_total = 0
        self._stream = stream
        self._empty_manager = empty_manager
        self._fail = fail
        self._distrust = distrust
        self._in_a_row = 0
        self._held_plans = 0

    @property
    def may_serve(self) -> bool:
        """Not once healing does not last."""
        return self._in_a_row < MAX_IN_A_ROW

    def step_that_adds_up(self, scheduler: Scheduler) -> Step | None:
        """The next step, if any. Where the books fail, they are healed, and requests that did not
        touch the fault are computed again on what is cached; when that does not help, everything is
        computed again on empty books.
        """
        try:
            return self._step(scheduler)
        except BOOKS_FAULTS as fault:
            log.error("page accounting failed in mid-step", error=str(fault))
        try:
            self._heal_in_mid_step(scheduler)
            return self._step(scheduler)
        except BOOKS_FAULTS as fault:
            log.error("page accounting failed again, starting over", error=str(fault))
        scheduler.put_back(PreemptionCause.BOOKS_HEALED, self._stream.last_plan_id + 1)
        scheduler.move_to(self._empty_manager(scheduler.manager.runner))
        self._distrust()
        self._stream.start_over()
        return self._step(scheduler)

    def _step(self, scheduler: Scheduler) -> Step | None:
        """Errors: one of BOOKS_FAULTS, with the step half made."""
        step = scheduler.schedule(self._stream.last_plan_id + 1)
        scheduler.manager.check_counters()
        if step is not None:
            self.held()
        return step

    def held(self) -> None:
        """A plan's counters add up."""
        self._held_plans += 1
        if self._held_plans >= PLANS_THAT_HELD:
            self._in_a_row = 0

    def _heal_in_mid_step(self, scheduler: Scheduler) -> None:
        """A step came to nothing half-way: no row is to be trusted."""
        _, touched = self._heal(scheduler, recount(scheduler.manager))
        scheduler.put_back(PreemptionCause.BOOKS_HEALED, self._stream.last_plan_id + 1)
        scheduler.manager.drop_rows(self._stream.last_plan_id, ChangeReason.HEALED)
        scheduler.finish_what_no_longer_fits()
        self._stream.start_over()
        self._fail_all(touched)

    def check(self, scheduler: Scheduler) -> list[str]:
        """Recount every page, and heal what does not add up. Returns the violations, in words."""
        found = recount(scheduler.manager)
        if not found.violations:
            self._in_a_row = 0
            return []
        told, touched = self._heal(scheduler, found)
        self._fail_all(touched)
        return told

    def _heal(self, scheduler: Scheduler, found: Recount) -> tuple[list[str], list[Req]]:
        """Returns what was wrong, in words, and the requests that touched it."""
        manager = scheduler.manager
        told = [violation.told(manager) for violation in found.violations]
        for violation in told:
            log.error("page accounting failed", violation=violation)
        self._distrust()
        self.healed_total += 1
        self._in_a_row += 1
        self._held_plans = 0
        rows = heal(manager, found)
        touched = [req for idx in rows if (req := manager.rows.req[idx]) is not None]
        scheduler.finish_what_no_longer_fits()
        return told, touched

    def _fail_all(self, touched: list[Req]) -> None:
        for req in touched:
            if not req.has_ended:
                self._fail(req)
