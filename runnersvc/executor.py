"""One thread owns the device. It takes work in order and publishes each answer; it never waits for
a reader.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

from runnersvc.executed_rows import ExecutedRows
from servicekit.plan import Int32Array, Plan, Refusal, Result

T = TypeVar("T")
V = TypeVar("V")
Answer: TypeAlias = Result | Refusal


class ExecutesPlans(Protocol):
    """What the executor drives: a model with its memory."""

    def execute(self, plan: Plan) -> Int32Array:
        """Apply an accepted plan. Returns the sampled ids, int32, one for each sampling row in plan
        order.
        """

    def read_table(self) -> Int32Array:
        """The page table as the plan executed last left it, [num_rows + 1, width], on the host; a
        view or a copy. For debugging and digests, never for a step.
        """


class Executor:
    """Executes accepted plans in order on a thread of its own.

    `publish` is called on that thread with each plan and its Result, and with each Refusal when its
    turn has come; `on_failure` with what a plan raised, after which nothing is executed any more:
    the state of the device memory is unknown then.
    """

    def __init__(
        self,
        model: ExecutesPlans,
        num_rows: int,
        publish: Callable[[Plan | None, Answer], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.last_plan_id = 0  # executed last; written on the thread, read where `call` runs
        self._model = model
        self._rows = ExecutedRows(num_rows)
        self._publish = publish
        self._on_failure = on_failure
        self._work: queue.SimpleQueue[Plan | Refusal | Callable[[], None] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="executor", daemon=True)
        self._thread.start()

    def put(self, work: Plan | Refusal) -> None:
        self._work.put(work)

    async def call(self, function: Callable[[], T]) -> T:
        """What `function` returns, called on the executor's thread after everything put before."""
        loop = asyncio.get_running_loop()
        returned: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                value = function()
            except Exception as error:  # noqa: BLE001 # raised where it was asked for
                loop.call_soon_threadsafe(
                    _unless_cancelled, returned, returned.set_exception, error
                )
            else:
                loop.call_soon_threadsafe(_unless_cancelled, returned, returned.set_result, value)

        self._work.put(run)
        return await returned

    def stop(self) -> None:
        """End the thread after the work put before. Blocks until it has ended."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        free_since = time.perf_counter()
        while True:
            work = self._work.get()
            if work is None:
                return
            if isinstance(work, Refusal):
                self._publish(None, work)
            elif isinstance(work, Plan):
                began = time.perf_counter()
                try:
                    sampled_ids = self._model.execute(work)
                    ended = time.perf_counter()
                    table_digest = self._digest_after(work)
                except Exception as error:  # noqa: BLE001 # reported: the owner ends the process
                    self._on_failure(error)
                    return
                self.last_plan_id = work.plan_id
                self._publish(
                    work,
                    Result(
                        plan_id=work.plan_id,
                        sampled_ids=sampled_ids,
                        waited_us=round((began - free_since) * 1e6),
                        device_us=round((ended - began) * 1e6),
                        table_digest=table_digest,
                    ),
                )
                free_since = time.perf_counter()
            else:
                work()

    def _digest_after(self, plan: Plan) -> int | None:
        self._rows.apply(plan)
        return self._rows.digest(self._model.read_table()) if plan.want_digest else None


def _unless_cancelled(returned: asyncio.Future[T], settle: Callable[[V], None], value: V) -> None:
    if not returned.cancelled():
        settle(value)
