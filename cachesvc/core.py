"""The manager without its wires: events in, plans and outputs out, no clock and no I/O.

The same events in the same order give the same plans. Times are arguments, in seconds of any clock
that does not go back.
"""

from __future__ import annotations

import structlog

from cachesvc.healing import Healer
from cachesvc.journal import Journal, NoJournal
from cachesvc.ledger import ChangeReason
from cachesvc.limits import Limits
from cachesvc.live_requests import LiveRequests
from cachesvc.outputs import Output
from cachesvc.plan_stream import DigestMismatchError, PlanStream
from cachesvc.recovery import Recovery
from cachesvc.request import FinishCause, Finished, Req, Submission, limit_len_of
from cachesvc.runner_watch import RunnerWatch
from cachesvc.scheduler import Scheduler
from cachesvc.totals import StreamTotals
from servicekit.errors import (
    DeadlineExceeded,
    Internal,
    PagewireError,
    Reason,
    ResourceExhausted,
    Unavailable,
)
from servicekit.plan import Attach, Attached, Failed, Plan, Refusal, Result, RunnerDescription

NOT_SAMPLED = (
    "the runner has no token for this request: the model's logits were no numbers, or it sampled "
    "outside its vocabulary"
)

log = structlog.get_logger()

MAX_REFUSALS_IN_A_ROW = 3
RETRY_AFTER_S = 1.0  # told to those whom the full queue turns away


class Core:
    """Joins the requests of all sessions, the scheduler and the plan stream. Rows and pages exist
    once a runner came.
    """

    def __init__(self, limits: Limits, journal: Journal | None = None) -> None:
        """`journal`: where it is written which pages hold what, and was by an earlier manager."""
        self.stream = PlanStream(
            limits.credits,
            want_digests=limits.want_digests,
            runner_silence_s=limits.runner_silence_s,
        )
        self.watch = RunnerWatch(self.stream)
        self.live = LiveRequests(limits.aging_s)
        self.totals = StreamTotals()
        self._limits = limits
        self._recovery = Recovery(
            self.stream, self.live, self.totals, limits, journal or NoJournal(), self._fail_counted
        )
        self.healer = Healer(
            self.stream,
            self._recovery.empty_manager,
            self._fail_touched,
            self._recovery.distrust,
        )

    @property
    def scheduler(self) -> Scheduler | None:
        """None until the first runner attached."""
        return self._recovery.scheduler

    @property
    def runner(self) -> RunnerDescription | None:
        """The runner that is, or was last, attached."""
        return self._recovery.runner

    @property
    def serving(self) -> bool:
        return (
            self.stream.attached
            and not self.watch.silent
            and self.stream.refusals_in_a_row < MAX_REFUSALS_IN_A_ROW
            and self.healer.may_serve
        )

    @property
    def is_idle(self) -> bool:
        """Nothing waits or runs, and nothing is on its way."""
        return not len(self.live) and self.stream.all_answered

    @property
    def _next_plan_id(self) -> int:
        return self.stream.last_plan_id + 1

    def ready_scheduler(self) -> Scheduler:
        """Errors: Unavailable until the first runner attached."""
        if self.scheduler is None:
            raise Unavailable(
                Reason.CHAIN_NOT_ATTACHED,
                "no runner has attached yet: try again when health is SERVING",
            )
        return self.scheduler

    # Requests

    def submit(self, session_id: int, submission: Submission, now_s: float = 0.0) -> None:
        """Take a request whose key is new in its session.

        Errors: InvalidArgument for what can never be served; ResourceExhausted while the queue is
        full, but not for one that an earlier session had; Unavailable before the first runner.
        """
        try:
            scheduler = self.ready_scheduler()
            manager = scheduler.manager
            limit_len = limit_len_of(submission, manager.runner, manager.usable_tokens)
            if not submission.is_again:
                self._check_room(len(scheduler.waiting))
        except PagewireError:
            self.live.totals.rejected += 1
            raise
        plan_id = self._next_plan_id
        scheduler.take(self.live.begin(session_id, submission, limit_len, plan_id, now_s))

    def _check_room(self, num_waiting: int) -> None:
        if num_waiting >= self._limits.max_waiting:
            raise ResourceExhausted(
                Reason.QUEUE_FULL,
                f"{num_waiting} requests wait, and max_waiting is {self._limits.max_waiting}: try "
                "again later",
                retry_after_s=RETRY_AFTER_S,
            )

    def stop(self, session_id: int, key: int) -> None:
        """The gateway has all it wants of a request: a finish. A key that ended is ignored."""
        if (req := self._unended(session_id, key)) is not None:
            self._end(req, ChangeReason.STOPPED, "STOPPED")
            self.live.totals.finished += 1

    def cancel(self, session_id: int, key: int) -> None:
        """Nobody wants the answer any more: an abort. A key that ended is ignored."""
        if (req := self._unended(session_id, key)) is not None:
            self._end(req, ChangeReason.ABORTED, "CANCELLED")
            self.live.totals.cancelled += 1

    def _unended(self, session_id: int, key: int) -> Req | None:
        """The request, unless it ended: what its session is to hear may not be taken yet."""
        req = self.live.find(session_id, key)
        return None if req is None or req.has_ended else req

    def close_session(self, session_id: int) -> int:
        """Abort every request of a session. Returns how many there were."""
        cancelled_before = self.live.totals.cancelled
        for req in self.live.of_session(session_id):
            self.cancel(session_id, req.key)
        return self.live.totals.cancelled - cancelled_before

    def _end(self, req: Req, reason: ChangeReason, how: str) -> None:
        self.ready_scheduler().end(req, reason)
        self.live.end(req, how, self._next_plan_id)

    def _fail(self, req: Req, failure: PagewireError) -> None:
        self._end(req, ChangeReason.FAILED, FinishCause.FAILED.name)
        self.ready_scheduler().outputs.append(
            Finished(req.session_id, req.key, FinishCause.FAILED, failure)
        )

    def _fail_counted(self, req: Req, failure: PagewireError) -> None:
        """It is no fault of who asked."""
        self._fail(req, failure)
        self.live.totals.failed += 1

    def tick(self, now_s: float) -> None:
        """Time passed: requests that still wait past their time fail, and a runner that has plans
        is silent for longer.
        """
        self.watch.tick(now_s)
        for req in [] if self.scheduler is None else self.scheduler.waiting.expired(now_s):
            waited = "again for a row" if req.story.admissions else "for a row"
            message = f"the time of the request was over while it waited {waited}: allow more"
            self._fail(req, DeadlineExceeded(Reason.DEADLINE_EXCEEDED, message))
            self.live.totals.expired += 1

    # The runner

    def attach_request(self) -> Attach:
        runner = self.runner
        return self.stream.attach_request("" if runner is None else runner.model_fingerprint)

    def attached(self, attached: Attached) -> list[Plan]:
        """A runner answered. Returns the plans to send it again before any other.

        Errors: FailedPrecondition FINGERPRINT_MISMATCH when it serves another model than the
        requests were made for.
        """
        plans = self._recovery.attached(attached)
        self.watch.forget()
        return plans

    def lost(self, reason: str = "") -> None:
        """The stream ended; rows and pages stay as they are until a runner attaches."""
        if self.stream.attached:
            log.warning(
                "runner lost",
                reason=reason,
                plans_in_flight=self.stream.under_way,
                prefill_tokens=self.stream.prefill_tokens_under_way,
            )
        self.stream.on_lost()
        self.watch.forget()

    def runner_failed(self, failed: Failed) -> None:
        """A plan failed in the runner, which ends."""
        log.error("plan failed in the runner", plan_id=failed.plan_id, message=failed.message)
        self._recovery.failed(failed)

    def runner_drained(self) -> None:
        """The runner ends as it was asked to; `lost` comes next."""
        self._recovery.drained()

    def next_plan(self) -> Plan | None:
        """The next plan to send, None when credits are used up or there is nothing to do."""
        if not self.stream.can_send or self.scheduler is None:
            return None
        step = self.healer.step_that_adds_up(self.scheduler)
        if step is None:
            if not self.stream.must_reset_rows:
                return None
            step = self.scheduler.empty_step()
        manager = self.scheduler.manager
        self.totals.max_used_pages = max(self.totals.max_used_pages, manager.used_count)
        digest = manager.table_digest() if self.stream.compares_digest(step) else None
        plan = self.stream.number(step, digest)
        self._recovery.write_down(plan.plan_id)
        return plan

    def result(self, result: Result) -> None:
        """Take the result of the oldest plan without one; one of a former life is ignored.

        Errors: ProtocolViolationError.
        """
        try:
            record = self.stream.on_result(result)
        except DigestMismatchError:
            self._recovery.distrust()
            raise
        self.watch.answered()
        if record is None:
            return
        self.totals.executor_device_us += result.device_us
        if record.continues:
            self.totals.executor_waited_us += result.waited_us
        for req in self.ready_scheduler().apply_result(record, result.sampled_ids, result.logprobs):
            self._fail_counted(req, Internal(Reason.INTERNAL, NOT_SAMPLED))

    def refused(self, refusal: Refusal) -> None:
        """Start over after a refused plan, on what plans before it cached; the requests that it
        names fail. Errors: ProtocolViolationError.
        """
        record = self.stream.on_refusal(refusal)
        self.watch.answered()
        self.totals.refused += 1
        log.error(
            "plan refused",
            plan_id=refusal.plan_id,
            reason=refusal.reason,
            message=refusal.message,
            rows=refusal.named_rows,
        )
        self._recovery.refused(record, refusal)

    def check_integrity(self) -> list[str]:
        """Recount every page, and heal what does not add up. Returns the violations, in words.

        Errors: Unavailable before the first runner.
        """
        return self.healer.check(self.ready_scheduler())

    def _fail_touched(self, req: Req) -> None:
        message = "the pages of this request did not add up: send it again"
        self._fail_counted(req, Internal(Reason.INTERNAL, message))

    # Outputs

    def take_outputs(self) -> list[Output]:
        """What sessions are to hear since the last call, in order."""
        if self.scheduler is None or not self.scheduler.outputs:
            return []
        outputs = self.scheduler.outputs
        self.scheduler.outputs = []
        for output in outputs:
            if isinstance(output, Finished):
                req = self.live.find(output.session_id, output.key)
                if req is not None:  # else it failed, and is counted so
                    self.live.end(req, output.cause.name, self._next_plan_id)
                    self.live.totals.finished += 1
        return outputs
