"""What of requests, rows and pages goes on when a runner attaches, and when it refused a plan."""

from __future__ import annotations

from collections.abc import Callable

from cachesvc.integrity import note_states
from cachesvc.ledger import ChangeReason, Ledger
from cachesvc.limits import Limits
from cachesvc.live_requests import LiveRequests
from cachesvc.manager import CacheManager
from cachesvc.plan_stream import PlanStream, Standing
from cachesvc.request import Req, limit_len_of
from cachesvc.scheduler import Scheduler
from cachesvc.step import StepRecord
from cachesvc.story import PreemptionCause
from servicekit.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    PagewireError,
    Reason,
)
from servicekit.plan import Attached, Plan, Refusal, RunnerDescription

NO_PLAN = 0


class Recovery:
    """Owns the scheduler: there is none until the first runner came. Requests that cannot go on
    fail by way of `fail`.
    """

    def __init__(
        self,
        stream: PlanStream,
        live: LiveRequests,
        limits: Limits,
        fail: Callable[[Req, PagewireError], None],
    ) -> None:
        self.scheduler: Scheduler | None = None
        self._stream = stream
        self._live = live
        self._limits = limits
        self._fail = fail

    @property
    def runner(self) -> RunnerDescription | None:
        """The runner that is, or was last, attached."""
        return None if self.scheduler is None else self.scheduler.manager.runner

    @property
    def _next_plan_id(self) -> int:
        return self._stream.last_plan_id + 1

    def attached(self, attached: Attached) -> list[Plan]:
        """A runner answered. Returns the plans to send it again before any other.

        Errors: FailedPrecondition FINGERPRINT_MISMATCH when it serves another model than the
        requests were made for.
        """
        known, runner = self.runner, attached.description
        if known is not None and known.model_fingerprint != runner.model_fingerprint:
            raise FailedPrecondition(
                Reason.FINGERPRINT_MISMATCH,
                f"the runner serves model {runner.model_fingerprint}, requests were made for "
                f"{known.model_fingerprint}",
            )
        plans: list[Plan] = []
        if self._stream.on_attached(attached) is Standing.RESUMED:
            plans = self._stream.plans_to_resend(attached.last_executed)
        elif self.scheduler is None:
            manager = self.empty_manager(runner)
            self.scheduler = Scheduler(manager, self._live.stories, self._limits)
        else:
            self._move_to(runner, self.scheduler)
        self._live.stories.runner_came(self._next_plan_id)
        return plans

    def empty_manager(self, runner: RunnerDescription) -> CacheManager:
        """One that knows no page of the runner."""
        ledger = Ledger(runner.page_size, runner.num_pages)
        return CacheManager(runner, ledger, self._limits)

    def _move_to(self, runner: RunnerDescription, scheduler: Scheduler) -> None:
        """Rows and pages are void: the KV memory is another, or another manager's."""
        former = scheduler.manager
        scheduler.put_back(PreemptionCause.MEMORY_LOST, self._next_plan_id)
        former.quarantined.clear()
        former.drop_rows(NO_PLAN, ChangeReason.VOIDED)
        note_states(former, ChangeReason.VOIDED)
        former.ledger.renumber(runner.page_size, runner.num_pages)
        manager = CacheManager(runner, former.ledger, self._limits)
        manager.evicted_total = former.evicted_total
        scheduler.move_to(manager)
        for req in scheduler.waiting:
            try:
                req.limit_len = limit_len_of(req.submission, runner, manager.usable_tokens)
            except InvalidArgument as error:
                message = f"another runner came, with which this cannot go on: {error.message}"
                self._fail(req, FailedPrecondition(error.reason, message))
        scheduler.finish_what_no_longer_fits()

    def refused(self, record: StepRecord, refusal: Refusal) -> None:
        """Start over after a refused plan, on what plans before it cached; the requests of its
        `record` that the refusal names fail.
        """
        scheduler = self.scheduler
        assert scheduler is not None, "plans are of a scheduler"
        scheduler.put_back(PreemptionCause.PLAN_REFUSED, self._next_plan_id)
        scheduler.manager.drop_rows(refusal.last_accepted_plan_id, ChangeReason.REFUSED)
        scheduler.finish_what_no_longer_fits()
        message = f"its plan was refused: {refusal.reason}, {refusal.message}"
        for req in _named(record, refusal):
            self._fail(req, Internal(Reason.PLAN_REFUSED, message))


def _named(record: StepRecord, refusal: Refusal) -> list[Req]:
    named = [record.row_reqs[idx] for idx in refusal.named_rows if 0 <= idx < len(record.row_reqs)]
    return [req for req in named if req is not None and not req.has_ended]
