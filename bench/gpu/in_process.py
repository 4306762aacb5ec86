"""Manager and runner in one process: the same core, books, executor and model, and no wires. What
the split into processes is measured against.

    python -m bench.gpu.in_process [settings of python -m runnersvc] [--step-budget-tokens N]

As in the services, one thread runs the event loop (here that of both), one launches, one waits. The
process says `null` when it is ready, reads lines `WORKLOAD TURN` from standard input until that
ends, serves each, and answers with a line of JSON: the fields of `bench.gpu.client.Run`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from dataclasses import dataclass

import numpy as np

from bench.gpu.client import Run
from bench.gpu.workloads import STEP_BUDGET_TOKENS, TEMPERATURE, Workload, workload
from bench.processes import BenchError
from cachesvc.core import Core
from cachesvc.limits import Limits
from cachesvc.request import Admitted, FinishCause, Submission
from cachesvc.service import FULL_COLLECTIONS
from cachesvc.step import Sampled
from runnersvc.config import RunnerConfig
from runnersvc.executor import Answer, ExecutesPlans
from runnersvc.runner import Runner
from servicekit.config import setting
from servicekit.host import GIL_SWITCH_INTERVAL_S
from servicekit.plan import Refusal, RunnerDescription
from servicekit.process import run_service
from servicekit.sampling import Sampling

SESSION_ID = 1
NO_STOP = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True)
class InProcessConfig(RunnerConfig):
    """The runner's own, and those of the manager that a benchmark sets."""

    step_budget_tokens: int = setting("tokens of a step", STEP_BUDGET_TOKENS)
    credits: int | None = setting("plans sent ahead of their results", None)


class InProcess:
    """A core that drives a runner directly. Made and used on one event loop."""

    def __init__(
        self, model: ExecutesPlans, description: RunnerDescription, limits: Limits
    ) -> None:
        sys.setswitchinterval(GIL_SWITCH_INTERVAL_S)  # this and the next as in the services
        gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTIONS)
        self._core = Core(limits)
        self._runner = Runner(model, description)
        self._next_key = 1
        self._tokens_by_nth = np.zeros(0, dtype=np.int64)
        self._cached_tokens = 0
        self._unfinished = 0
        self._finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def attach(self) -> None:
        attached, _ = await self._runner.attach(self._core.attach_request(), self._answered)
        self._core.attached(attached)

    async def run(self, given: Workload) -> Run:
        """As `bench.gpu.client.Client.run`, with an empty prefix cache. Errors: BenchError."""
        await self._runner.drained()
        self._core.ready_scheduler().manager.flush()
        gc.collect()
        submissions = self._submissions(given)
        self._tokens_by_nth = np.zeros(len(submissions), dtype=np.int64)
        self._cached_tokens, self._unfinished = 0, len(submissions)
        self._finished = asyncio.get_running_loop().create_future()
        began_s = time.monotonic()
        for submission in submissions:
            self._core.submit(SESSION_ID, submission, began_s)
        self._go_on()
        failed = asyncio.create_task(self._runner.failed.wait())
        await asyncio.wait((self._finished, failed), return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            raise BenchError("a plan failed while it was executed")
        failed.cancel()
        await self._finished
        ended_s = time.monotonic()
        due = [request.max_tokens for request in given.requests]
        if self._tokens_by_nth.tolist() != due:
            raise BenchError(f"{given.name}: a request has a wrong number of tokens")
        return Run(began_s, ended_s, self._cached_tokens)

    def stop(self) -> None:
        self._runner.stop()

    def _submissions(self, given: Workload) -> list[Submission]:
        first_key = self._next_key
        self._next_key += len(given.requests)
        return [
            Submission(
                key=key,
                request_id=f"{given.name}-{key}",
                prompt_ids=np.array(request.prompt_ids, dtype=np.int32),
                sampling=Sampling(temperature=TEMPERATURE, seed=key),
                max_tokens=request.max_tokens,
                stop_token_ids=NO_STOP,
            )
            for key, request in enumerate(given.requests, start=first_key)
        ]

    def _answered(self, answer: Answer) -> None:
        """The runner has a result, and calls on the event loop."""
        if isinstance(answer, Refusal):
            self._fail(f"plan {answer.plan_id} was refused: {answer.message}")
            return
        self._core.result(answer)
        self._go_on()

    def _go_on(self) -> None:
        while (plan := self._core.next_plan()) is not None:
            self._runner.take(plan)
        first_key = self._next_key - len(self._tokens_by_nth)
        for output in self._core.take_outputs():
            if isinstance(output, Sampled):
                self._tokens_by_nth += np.bincount(
                    output.keys - first_key, minlength=len(self._tokens_by_nth)
                )
            elif isinstance(output, Admitted):
                self._cached_tokens += output.cached_len
            elif output.cause is FinishCause.MAX_TOKENS:
                self._unfinished -= 1
            else:
                self._fail(f"a request ended with {output.cause.name}")
        if not self._unfinished and not self._finished.done():
            self._finished.set_result(None)

    def _fail(self, why: str) -> None:
        if not self._finished.done():
            self._finished.set_exception(BenchError(why))


async def serve(config: InProcessConfig) -> None:
    """Until standard input ends. Errors: SetupError, BenchError."""
    from runnersvc.server import checked, load

    model, description = await asyncio.to_thread(load, config, checked(config))
    limits = Limits(step_budget_tokens=config.step_budget_tokens, credits=config.credits)
    served = InProcess(model, description, limits)
    await served.attach()
    print(json.dumps(None), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        name, turn = line.split()
        run = await served.run(workload(name).turn(int(turn)))
        print(json.dumps(run), flush=True)
    served.stop()


if __name__ == "__main__":
    run_service(
        "in_process", "Manager and runner in one process, to measure.", InProcessConfig, serve
    )
