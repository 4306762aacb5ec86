"""The runner without its wires: attach, accept or refuse, execute, keep results until they are
acknowledged.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import structlog

from runnersvc.bookkeeping import Books
from runnersvc.executor import Answer, ExecutesPlans, Executor
from servicekit.errors import AlreadyExists, Reason
from servicekit.handshake import check_fingerprint, check_protocol_version
from servicekit.plan import Attach, Attached, Failed, Plan, Result, RunnerDescription

log = structlog.get_logger()

T = TypeVar("T")


@dataclass
class Totals:
    """Counters of one life that only grow, read by whoever asks."""

    attached: int = 0
    resent_results: int = 0  # that a manager did not hold when it attached
    executed_plans: int = 0
    sampled_tokens: int = 0
    graph_steps: int = 0
    eager_decode_steps: int = 0  # that no captured CUDA graph was there for
    waited_us: int = 0
    launch_us: int = 0
    device_us: int = 0
    refused_by_reason: Counter[str] = field(default_factory=Counter)


class _Accepted(NamedTuple):
    """A plan that is not executed yet."""

    plan_id: int
    prefill_tokens: int


class Runner:
    """One life of the KV memory. Everything but the model runs on the event loop that made it.

    `failed` is set when a plan raised: the memory is not to be trusted and the process has to end.
    The manager is told before.
    """

    def __init__(self, model: ExecutesPlans, description: RunnerDescription) -> None:
        self.description = description
        self.boot_id = secrets.token_hex(8)
        self.last_executed = 0
        self.failed = asyncio.Event()
        self.totals = Totals()
        self._last_manager_id = ""
        self._books = Books(description)
        self._dropping = False  # after a refusal, until a plan starts over
        self._accepted: deque[_Accepted] = deque()  # without a result so far, oldest first
        self._kept: dict[int, Result] = {}  # results not acknowledged, by plan_id in order
        self._send: Callable[[Answer], None] | None = None  # the live stream
        self._attaching = False
        self._loop = asyncio.get_running_loop()
        self._model = model
        self._executor = Executor(model, description.num_rows, self._publish, self._fail)

    @property
    def live_rows(self) -> int:
        """Rows that are open after every plan accepted so far."""
        return self._books.open_count

    @property
    def oldest_plan_id(self) -> int | None:
        """Of the plans that were accepted and have no result; None when there is none."""
        return self._accepted[0].plan_id if self._accepted else None

    @property
    def kept_results(self) -> int:
        """Results that no plan has acknowledged."""
        return len(self._kept)

    async def attach(
        self, attach: Attach, send: Callable[[Answer], None]
    ) -> tuple[Attached, list[Result]]:
        """Make `send` the live stream, once every plan accepted before is executed.

        Returns the answer and the results that the manager does not hold.

        Errors: FailedPrecondition for another protocol version or model; AlreadyExists while a
        stream is live.
        """
        check_protocol_version("attach.protocol_version", attach.protocol_version, "runner")
        served = self.description.model_fingerprint
        check_fingerprint(
            "attach.model_fingerprint", attach.model_fingerprint, served, "this runner"
        )
        if self._send is not None or self._attaching:
            raise AlreadyExists(
                Reason.STREAM_ALREADY_LIVE,
                "another Execute stream is live: attach again when it has ended",
            )
        self._attaching = True
        try:
            await self.drained()
        finally:
            self._attaching = False
        self._send = send
        self.totals.attached += 1
        self._dropping = False
        is_same = (attach.boot_id, attach.manager_id) == (self.boot_id, self._last_manager_id)
        if is_same and attach.last_result_plan_id is not None:  # else they may be another's
            self._forget(attach.last_result_plan_id)
        attached = Attached(
            self.description, self.boot_id, self.last_executed, self._last_manager_id
        )
        results = list(self._kept.values())
        self.totals.resent_results += len(results)
        log.info(
            "manager attached",
            manager_id=attach.manager_id,
            last_executed=self.last_executed,
            resent_results=len(results),
        )
        return attached, results

    def detach(self) -> None:
        """The live stream ended; what was accepted is executed all the same."""
        self._send = None
        log.info(
            "manager lost",
            plans_in_flight=len(self._accepted),
            prefill_tokens=sum(accepted.prefill_tokens for accepted in self._accepted),
        )

    def take(self, plan: Plan) -> None:
        """A plan came on the live stream: accept it, or refuse it in its turn."""
        if self._dropping and not (
            plan.reset_rows and plan.plan_id == self._books.last_plan_id + 1
        ):
            return
        refusal = self._books.accept(plan)
        if refusal is not None:
            log.warning(
                "plan refused", plan_id=plan.plan_id, reason=refusal.reason, message=refusal.message
            )
            self._dropping = True
            self.totals.refused_by_reason[refusal.reason] += 1
            self._executor.put(refusal)
            return
        self._dropping = False
        self._forget(plan.acked_plan_id)
        self._accepted.append(_Accepted(plan.plan_id, len(plan.literal_ids)))
        self._executor.put(plan)
        for row in plan.open_rows:
            if row.traceparent:
                log.debug(
                    "row opened",
                    table_idx=row.table_idx,
                    plan_id=plan.plan_id,
                    traceparent=row.traceparent,
                )

    async def drained(self) -> None:
        """Return when everything accepted so far is executed and its results are published."""
        await self._executor.call(lambda: None)

    async def read_locs(self, table_idx: int, start: int, end: int) -> tuple[list[int], int]:
        """The locs at positions `start … end - 1` of a row, and the plan executed last."""

        def read() -> list[int]:
            locs: list[int] = self._model.read_table()[table_idx, start:end].tolist()
            return locs

        return await self.read(read)

    async def read(self, function: Callable[[], T]) -> tuple[T, int]:
        """What `function` reads of the device between two plans, and the plan executed last."""
        return await self._executor.call(lambda: (function(), self._executor.last_plan_id))

    def stop(self) -> None:
        self._executor.stop()

    def _forget(self, acked_plan_id: int) -> None:
        for plan_id in [kept for kept in self._kept if kept <= acked_plan_id]:
            del self._kept[plan_id]

    def _publish(self, plan: Plan | None, answer: Answer) -> None:
        self._loop.call_soon_threadsafe(self._published, plan, answer)

    def _published(self, plan: Plan | None, answer: Answer) -> None:
        if plan is not None and isinstance(answer, Result):
            self._accepted.popleft()
            self.last_executed = plan.plan_id
            self._last_manager_id = plan.manager_id
            self._kept[plan.plan_id] = answer
            self.totals.executed_plans += 1
            self.totals.sampled_tokens += len(answer.sampled_ids)
            self.totals.graph_steps += answer.from_graph
            self.totals.eager_decode_steps += plan.only_decodes and not answer.from_graph
            self.totals.waited_us += answer.waited_us
            self.totals.launch_us += answer.launch_us
            self.totals.device_us += answer.device_us
        if self._send is not None:
            self._send(answer)

    def _fail(self, failed: Failed, error: Exception) -> None:
        log.error(
            "a plan failed, the device memory is not to be trusted",
            plan_id=failed.plan_id,
            exc_info=error,
        )
        self._publish(None, failed)
        self._loop.call_soon_threadsafe(self.failed.set)
