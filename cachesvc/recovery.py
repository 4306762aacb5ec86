"""What of requests, rows and pages goes on when a runner attaches, and when it refused a plan."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from cachesvc.adoption import UnusableJournalError, adopt
from cachesvc.integrity import note_states
from cachesvc.journal import Entry, Head, Journal
from cachesvc.ledger import ChangeReason, Ledger
from cachesvc.limits import Limits
from cachesvc.live_requests import LiveRequests
from cachesvc.manager import CacheManager
from cachesvc.plan_stream import PlanStream, Standing
from cachesvc.request import Req, limit_len_of
from cachesvc.scheduler import Scheduler
from cachesvc.step import StepRecord
from cachesvc.story import PreemptionCause
from cachesvc.totals import StreamTotals
from servicekit.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    PagewireError,
    Reason,
)
from servicekit.plan import Attached, Failed, Plan, Refusal, RunnerDescription

log = structlog.get_logger()

NO_PLAN = 0


class Recovery:
    """Owns the scheduler: there is none until the first runner came. Requests that cannot go on
    fail by way of `fail`.
    """

    def __init__(
        self,
        stream: PlanStream,
        live: LiveRequests,
        totals: StreamTotals,
        limits: Limits,
        journal: Journal,
        fail: Callable[[Req, PagewireError], None],
    ) -> None:
        self.scheduler: Scheduler | None = None
        self._stream = stream
        self._live = live
        self._totals = totals
        self._limits = limits
        self._journal = journal
        self._fail = fail
        self._failed: Failed | None = None  # what the runner said before it ended
        self._drained = False

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
        died = bool(self._stream.boot_id) and self._stream.boot_id != attached.boot_id
        stepped = self._stream.stepped_under_way(self._failed) if died and not self._drained else []
        self._failed, self._drained = None, False
        plans: list[Plan] = []
        resent_results = adopted_pages = readmitted = lost_tokens = 0
        last_result_plan_id = self._stream.last_result_plan_id
        standing = self._stream.on_attached(attached)
        if standing is Standing.RESUMED:
            plans = self._stream.plans_to_resend(attached.last_executed)
            resent_results = attached.last_executed - last_result_plan_id
        elif self.scheduler is None:
            manager = self.empty_manager(runner)
            adopted_pages = self._adopt(manager, attached)
            self.scheduler = Scheduler(manager, self._live.stories, self._limits)
        else:
            readmitted = self.scheduler.running_count
            rows = self.scheduler.manager.rows
            lost_tokens = int(rows.cached_len[rows.live].sum())
            self._move_to(runner, self.scheduler)
            self._blame(stepped, self.scheduler)
        self._live.stories.runner_came(self._next_plan_id)
        self._totals.attached += 1
        self._totals.resent_plans += len(plans)
        self._totals.resent_results += resent_results
        self._totals.adopted_pages += adopted_pages
        log.info(
            "runner attached",
            boot_id=attached.boot_id,
            standing="adopted" if adopted_pages else standing.value,
            resent_plans=len(plans),
            resent_results=resent_results,
            adopted_pages=adopted_pages,
            readmitted=readmitted,
            lost_tokens=lost_tokens,  # of those requests: to be computed again, or found cached
        )
        return plans

    def _adopt(self, manager: CacheManager, attached: Attached) -> int:
        """Take over what an earlier manager cached there. Returns how many pages that are."""
        kept, self._journal.kept = self._journal.kept, None
        if kept is None:
            return 0
        try:
            return adopt(manager, kept, attached)
        except UnusableJournalError as error:
            log.warning("journal void", reason=str(error))
            return 0

    def distrust(self) -> None:
        """What pages hold is not what was written: nobody is to adopt it."""
        self._journal.discard()

    def write_down(self, plan_id: int) -> None:
        """Write the journal for the plan that is about to be sent."""
        assert self.scheduler is not None, "plans are of a scheduler"
        manager = self.scheduler.manager
        if not manager.known.rewrite_due and not self._journal.is_long:
            self._journal.append(Entry(plan_id, manager.known.take_changes()))
            return
        manager.renote_known()
        runner = manager.runner
        head = Head(
            boot_id=self._stream.boot_id,
            manager_id=self._stream.manager_id,
            former_manager_id=self._stream.former_manager_id,
            former_last_executed=self._stream.former_last_executed,
            model_fingerprint=runner.model_fingerprint,
            page_size=runner.page_size,
            num_pages=runner.num_pages,
        )
        self._journal.replace(head, Entry(plan_id, manager.known.take_changes()))

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

    def failed(self, failed: Failed) -> None:
        """The runner said at which plan, and ends."""
        self._failed = failed

    def drained(self) -> None:
        """The runner ends because it was asked to: it dies of no request."""
        self._drained = True

    def _blame(self, stepped: list[Req], scheduler: Scheduler) -> None:
        """A runner died with these in its plans."""
        for req in scheduler.suspects.blame(req for req in stepped if not req.has_ended):
            log.error(
                "request poisoned",
                request_id=req.submission.request_id,
                runner_deaths=req.runner_deaths,
            )
            message = (
                f"{req.runner_deaths} runners died with this request in their plans: sent again, "
                "it may end the next one"
            )
            self._live.totals.poisoned += 1
            self._fail(req, Internal(Reason.RUNNER_DIED_TWICE, message))

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
