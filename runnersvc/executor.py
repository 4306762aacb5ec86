"""One thread hands plans to the device, another waits for what comes of them and publishes it."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from runnersvc.executed_rows import ExecutedRows
from servicekit.plan import Failed, Int32Array, Logprobs, Plan, Refusal, Result
from servicekit.quoting import shortened_bytes

T = TypeVar("T")
V = TypeVar("V")
Answer: TypeAlias = Result | Refusal | Failed

MAX_MESSAGE_BYTES = 1024  # of what a plan raised, as the manager is told


class Executed(NamedTuple):
    """What came of a plan on the device."""

    sampled_ids: Int32Array  # one for each sampling row, in plan order
    device_us: int
    gap_us: int | None = None  # from the last kernel of the step before to the first; None: unknown
    from_graph: bool = False
    logprobs: Logprobs | None = None


class Launched(Protocol):
    """A plan that the device executes, or has executed."""

    def wait(self) -> Executed:
        """Return when it is executed. Called once, on any thread."""


class ExecutesPlans(Protocol):
    """What the executor drives: a model with its memory."""

    def launch(self, plan: Plan) -> Launched:
        """Have the device execute an accepted plan, after those launched before; waits for none."""

    def read_table(self) -> Int32Array:
        """The page table as the plan launched last leaves it, [num_rows + 1, width], on the host; a
        view or a copy. For debugging and digests, never for a step.
        """


class AtOnce:
    """A plan that was executed while it was launched, since `began` (of `time.perf_counter`)."""

    def __init__(
        self, sampled_ids: Int32Array, began: float, logprobs: Logprobs | None = None
    ) -> None:
        self._executed = Executed(sampled_ids, _us_since(began), logprobs=logprobs)

    def wait(self) -> Executed:
        return self._executed


@dataclass(frozen=True, slots=True)
class _InFlight:
    plan: Plan
    launched: Launched
    waited_us: int
    launch_us: int
    table_digest: int | None


class _Raised(NamedTuple):
    """Handing a plan to the device raised."""

    plan_id: int
    error: Exception


class Executor:
    """Executes accepted plans in order, the next one launched while the device is at the last.

    `publish` is called with each plan and its Result, and with each Refusal when its turn has come;
    `on_failure` with what a plan raised and what the manager is to know of it, after which nothing
    is executed any more: the state of the device memory is unknown then. Both on a thread of their
    own, which waits for the device and for no reader.

    An error of the device may come out while plans after the guilty one are launched, and it may be
    theirs: all of them are named.
    """

    def __init__(
        self,
        model: ExecutesPlans,
        num_rows: int,
        publish: Callable[[Plan | None, Answer], None],
        on_failure: Callable[[Failed, Exception], None],
    ) -> None:
        self.last_plan_id = 0  # launched last; written and read on the launching thread
        self._begun_plan_id = 0  # the last one whose launch began
        self._model = model
        self._rows = ExecutedRows(num_rows)
        self._publish = publish
        self._on_failure = on_failure
        self._failed = False
        self._work: queue.SimpleQueue[Plan | Refusal | Callable[[], Callable[[], None]] | None] = (
            queue.SimpleQueue()
        )
        self._under_way: queue.SimpleQueue[
            _InFlight | Refusal | _Raised | Callable[[], None] | None
        ] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in ((self._launch, "executor"), (self._finish, "finisher"))
        ]
        for thread in self._threads:
            thread.start()

    def put(self, work: Plan | Refusal) -> None:
        self._work.put(work)

    async def call(self, function: Callable[[], T]) -> T:
        """What `function` returns, called on the launching thread after everything put before; when
        it has been published, too.
        """
        loop = asyncio.get_running_loop()
        returned: asyncio.Future[T] = loop.create_future()

        def run() -> Callable[[], None]:
            try:
                value = function()
            except Exception as error:  # noqa: BLE001 # raised where it was asked for
                failure = error
                return lambda: _settle(loop, returned, returned.set_exception, failure)
            return lambda: _settle(loop, returned, returned.set_result, value)

        self._work.put(run)
        return await returned

    def stop(self) -> None:
        """End the threads after the work put before. Blocks until they have ended."""
        self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _launch(self) -> None:
        free_since = time.perf_counter()
        while (work := self._work.get()) is not None and not self._failed:
            if isinstance(work, Refusal):
                self._under_way.put(work)
            elif isinstance(work, Plan):
                began = time.perf_counter()
                self._begun_plan_id = work.plan_id
                try:
                    launched = self._model.launch(work)
                    launch_us = _us_since(began)
                    table_digest = self._digest_after(work)
                except Exception as error:  # noqa: BLE001 # reported: the owner ends the process
                    self._under_way.put(_Raised(work.plan_id, error))
                    break
                self.last_plan_id = work.plan_id
                waited_us = round((began - free_since) * 1e6)
                self._under_way.put(_InFlight(work, launched, waited_us, launch_us, table_digest))
                free_since = time.perf_counter()
            else:
                self._under_way.put(work())
        self._under_way.put(None)

    def _finish(self) -> None:
        while (done := self._under_way.get()) is not None:
            if isinstance(done, Refusal):
                self._publish(None, done)
            elif isinstance(done, _InFlight):
                try:
                    executed = done.launched.wait()
                except Exception as error:  # noqa: BLE001 # reported: the owner ends the process
                    return self._fail(done.plan.plan_id, error)
                self._publish(
                    done.plan,
                    Result(
                        plan_id=done.plan.plan_id,
                        sampled_ids=executed.sampled_ids,
                        waited_us=done.waited_us,
                        launch_us=done.launch_us,
                        device_us=executed.device_us,
                        gap_us=executed.gap_us,
                        from_graph=executed.from_graph,
                        logprobs=executed.logprobs,
                        table_digest=done.table_digest,
                    ),
                )
            elif isinstance(done, _Raised):
                return self._fail(done.plan_id, done.error)
            else:
                done()
        return None

    def _fail(self, plan_id: int, error: Exception) -> None:
        self._failed = True
        raised = shortened_bytes(f"{type(error).__name__}: {error}", MAX_MESSAGE_BYTES)
        self._on_failure(Failed(plan_id, raised, self._begun_plan_id), error)

    def _digest_after(self, plan: Plan) -> int | None:
        self._rows.apply(plan)
        return self._rows.digest(self._model.read_table()) if plan.want_digest else None


def _us_since(began: float) -> int:
    return round((time.perf_counter() - began) * 1e6)


def _settle(
    loop: asyncio.AbstractEventLoop,
    returned: asyncio.Future[T],
    settle: Callable[[V], None],
    value: V,
) -> None:
    def unless_cancelled() -> None:
        if not returned.cancelled():
            settle(value)

    loop.call_soon_threadsafe(unless_cancelled)
