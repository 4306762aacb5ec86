"""The manager without its wires: events in, plans and outputs out, no clock and no I/O.

The same events in the same order give the same plans.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from cachesvc.manager import CacheManager, IntegrityError
from cachesvc.page_pool import PoolError
from cachesvc.plan_stream import PlanStream, Standing
from cachesvc.request import FinishCause, Finished, Req, ReqState, Submission, limit_len_of
from cachesvc.scheduler import Scheduler
from cachesvc.step import Sampled, Step, StepRecord
from servicekit.errors import FailedPrecondition, Internal, Reason, Unavailable
from servicekit.plan import Attach, Attached, Plan, Refusal, Result, RunnerDescription

log = structlog.get_logger()

MAX_REFUSALS_IN_A_ROW = 3


@dataclass
class Totals:
    """Counters that only grow."""

    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    attached: int = 0
    resent_plans: int = 0
    executor_waited_us: int = 0
    executor_device_us: int = 0
    max_private_pages: int = 0


class Core:
    """Joins the requests of all sessions, the scheduler and the plan stream. Rows and pages exist
    once a runner came.
    """

    def __init__(self, *, step_budget_tokens: int, credits: int) -> None:
        self.stream = PlanStream(credits)
        self.totals = Totals()
        self._budget = step_budget_tokens
        self._scheduler: Scheduler | None = None
        self._reqs: dict[tuple[int, int], Req] = {}
        self._arrivals = 0

    @property
    def scheduler(self) -> Scheduler | None:
        """None until the first runner attached."""
        return self._scheduler

    @property
    def runner(self) -> RunnerDescription | None:
        """The runner that is, or was last, attached."""
        return None if self._scheduler is None else self._scheduler.manager.runner

    @property
    def serving(self) -> bool:
        return self.stream.attached and self.stream.refusals_in_a_row < MAX_REFUSALS_IN_A_ROW

    @property
    def live_count(self) -> int:
        """Requests that have not ended."""
        return len(self._reqs)

    # Requests

    def submit(self, session_id: int, submission: Submission) -> None:
        """Take a request whose key is new in its session.

        Errors: InvalidArgument for what can never be served; Unavailable before the first runner.
        """
        if self._scheduler is None:
            raise Unavailable(
                Reason.CHAIN_NOT_ATTACHED,
                "no runner has attached yet: try again when health is SERVING",
            )
        assert (session_id, submission.key) not in self._reqs, "keys of a session grow"
        limit_len = limit_len_of(submission, self._scheduler.manager.runner)
        req = Req(
            session_id=session_id,
            key=submission.key,
            arrival=self._arrivals,
            request_id=submission.request_id,
            prompt_ids=submission.prompt_ids,
            sampling=submission.sampling,
            limit_len=limit_len,
            stop_token_ids=submission.stop_token_ids,
        )
        self._arrivals += 1
        self._reqs[session_id, submission.key] = req
        self._scheduler.submit(req)

    def stop(self, session_id: int, key: int) -> None:
        """The gateway has all it wants of a request: a finish. A key that ended is ignored."""
        if self._end(session_id, key):
            self.totals.finished += 1

    def cancel(self, session_id: int, key: int) -> None:
        """Nobody wants the answer any more: an abort. A key that ended is ignored."""
        if self._end(session_id, key):
            self.totals.cancelled += 1

    def close_session(self, session_id: int) -> None:
        """Abort every request of a session."""
        for owner, key in list(self._reqs):
            if owner == session_id:
                self.cancel(session_id, key)

    def _end(self, session_id: int, key: int) -> bool:
        req = self._reqs.pop((session_id, key), None)
        if req is None:
            return False
        assert self._scheduler is not None
        self._scheduler.end(req)
        return True

    # The runner

    def attach_request(self) -> Attach:
        runner = self.runner
        return self.stream.attach_request("" if runner is None else runner.model_fingerprint)

    def attached(self, attached: Attached) -> list[Plan]:
        """A runner answered. Returns the plans to send it again before any other.

        Errors: FailedPrecondition FINGERPRINT_MISMATCH when it serves another model than the
        requests were made for.
        """
        known = self.runner
        if known is not None and known.model_fingerprint != attached.description.model_fingerprint:
            raise FailedPrecondition(
                Reason.FINGERPRINT_MISMATCH,
                f"the runner serves model {attached.description.model_fingerprint}, requests "
                f"were made for {known.model_fingerprint}",
            )
        self.totals.attached += 1
        if self.stream.on_attached(attached) is Standing.RESUMED:
            plans = self.stream.plans_to_resend(attached.last_executed)
            self.totals.resent_plans += len(plans)
            return plans
        manager = CacheManager(attached.description)
        if self._scheduler is None:
            self._scheduler = Scheduler(manager, self._budget)
        else:
            self._scheduler.start_over(manager)
            self._fail_what_no_longer_fits()
        return []

    def _fail_what_no_longer_fits(self) -> None:
        """A runner with a smaller pool or context came back."""
        assert self._scheduler is not None
        runner = self._scheduler.manager.runner
        for req in list(self._scheduler.requests()):
            if req.limit_len > runner.max_seq_len or len(req.prompt_ids) + 1 > runner.pool_tokens:
                self._fail(
                    req,
                    "the runner came back with a context or page pool too small for this request",
                )

    def lost(self) -> None:
        """The stream ended; rows and pages stay as they are until a runner attaches."""
        self.stream.on_lost()

    def next_plan(self) -> Plan | None:
        """The next plan to send, None when credits are used up or there is nothing to do."""
        if not self.stream.can_send or self._scheduler is None:
            return None
        step = self._checked_step(self._scheduler)
        if step is None:
            if not self.stream.must_reset_rows:
                return None
            step = self._scheduler.empty_step()
        return self.stream.number(step)

    def _checked_step(self, scheduler: Scheduler) -> Step | None:
        """A step whose books add up; where they do not, everything is recomputed on rows and pages
        made anew.
        """
        try:
            step = scheduler.schedule()
            manager = scheduler.manager
            manager.check_counters()
        except (IntegrityError, PoolError) as error:
            self._heal(scheduler, error)
            return scheduler.schedule()
        self.totals.max_private_pages = max(self.totals.max_private_pages, manager.private_count)
        return step

    def _heal(self, scheduler: Scheduler, error: IntegrityError | PoolError) -> None:
        """The books do not add up: make rows and pages anew, compute every request again."""
        log.error(
            "page accounting failed, starting over",
            error=str(error),
            plan_id=self.stream.last_plan_id + 1,
        )
        self.stream.start_over()
        scheduler.start_over(CacheManager(scheduler.manager.runner))

    def result(self, result: Result) -> None:
        """Take the result of the oldest plan without one; one of a former life is ignored.

        Errors: ProtocolViolationError.
        """
        record = self.stream.on_result(result)
        if record is None:
            return
        self.totals.executor_device_us += result.device_us
        if record.continues:
            self.totals.executor_waited_us += result.waited_us
        assert self._scheduler is not None
        self._scheduler.apply_result(record, result.sampled_ids)
        if not self._reqs and self.stream.all_answered:
            self._check_integrity(self._scheduler)

    def _check_integrity(self, scheduler: Scheduler) -> None:
        """The full walk over rows and pages, while nothing runs and nothing is on its way."""
        try:
            scheduler.manager.check_integrity()
        except IntegrityError as error:
            self._heal(scheduler, error)

    def refused(self, refusal: Refusal) -> None:
        """Start over after a refused plan; the requests that it names fail. Errors:
        ProtocolViolationError.
        """
        record = self.stream.on_refusal(refusal)
        self.totals.refused += 1
        log.error(
            "plan refused",
            plan_id=refusal.plan_id,
            reason=refusal.reason,
            message=refusal.message,
            rows=refusal.named_rows,
        )
        assert self._scheduler is not None
        self._scheduler.start_over(CacheManager(self._scheduler.manager.runner))
        for req in self._named(record, refusal):
            self._fail(req, f"its plan was refused: {refusal.reason}, {refusal.message}")

    def _named(self, record: StepRecord, refusal: Refusal) -> list[Req]:
        named = [
            record.row_reqs[idx] for idx in refusal.named_rows if 0 <= idx < len(record.row_reqs)
        ]
        return [req for req in named if req is not None and req.state is not ReqState.ENDED]

    def _fail(self, req: Req, message: str) -> None:
        assert self._scheduler is not None
        del self._reqs[req.session_id, req.key]
        self._scheduler.end(req)
        failure = Internal(Reason.PLAN_REFUSED, message)
        self._scheduler.outputs.append(
            Finished(req.session_id, req.key, FinishCause.FAILED, failure)
        )
        self.totals.failed += 1

    # Outputs

    def take_outputs(self) -> list[Sampled | Finished]:
        """What sessions are to hear since the last call, in order."""
        if self._scheduler is None or not self._scheduler.outputs:
            return []
        outputs = self._scheduler.outputs
        self._scheduler.outputs = []
        for output in outputs:
            if isinstance(output, Finished):
                ended = self._reqs.pop((output.session_id, output.key), None)
                self.totals.finished += ended is not None  # else it failed, and is counted so
        return outputs
