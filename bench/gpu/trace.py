"""What a runner did, plan by plan, seen from outside its model: written by the runner process of a
benchmark, read by the benchmark.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from runnersvc.executor import Executed, ExecutesPlans, Launched
from runnersvc.serving import Load, ServingConfig, serve_model
from servicekit.plan import Int32Array, Plan, RunnerDescription


class StepTrace(NamedTuple):
    """One plan. Times are of `time.monotonic`, which all processes of a machine share."""

    launched_s: float  # its launch began
    launch_us: int
    rows: int
    tokens: int  # computed
    decode_only: bool  # each row computes the token that it sampled last
    device_us: int
    gap_us: int | None  # since the step before; None: not known
    ended_s: float  # its results were on the host


class TracedModel:
    """A model that remembers what it was launched with and how long that took
    (`runnersvc.executor.ExecutesPlans`). It adds a plan to `steps` when that has been waited for.
    """

    def __init__(self, model: ExecutesPlans, steps: list[StepTrace]) -> None:
        self._model = model
        self._steps = steps

    def launch(self, plan: Plan) -> Launched:
        began_s = time.monotonic()
        launched = self._model.launch(plan)
        launch_us = round((time.monotonic() - began_s) * 1e6)
        return _TracedLaunch(plan, launched, began_s, launch_us, self._steps)

    def read_table(self) -> Int32Array:
        return self._model.read_table()


class _TracedLaunch:
    def __init__(
        self,
        plan: Plan,
        launched: Launched,
        launched_s: float,
        launch_us: int,
        steps: list[StepTrace],
    ) -> None:
        self._plan = plan
        self._launched = launched
        self._launched_s = launched_s
        self._launch_us = launch_us
        self._steps = steps

    def wait(self) -> Executed:
        executed = self._launched.wait()
        plan = self._plan
        self._steps.append(
            StepTrace(
                launched_s=self._launched_s,
                launch_us=self._launch_us,
                rows=len(plan.step_rows),
                tokens=int(plan.step_extend_lens.sum()),
                decode_only=len(plan.step_rows) > 0 and len(plan.literal_ids) == 0,
                device_us=executed.device_us,
                gap_us=executed.gap_us,
                ended_s=time.monotonic(),
            )
        )
        return executed


async def serve_traced(config: ServingConfig, load: Load, path: Path) -> None:
    """As `runnersvc.serving.serve_model`, with the trace of its life in `path` when it returns or
    raises.
    """
    steps: list[StepTrace] = []

    def load_traced() -> tuple[TracedModel, RunnerDescription]:
        model, description = load()
        return TracedModel(model, steps), description

    try:
        await serve_model(config, load_traced)
    finally:
        write_trace(path, steps)


def write_trace(path: Path, steps: Iterable[StepTrace]) -> None:
    """A JSON object a line."""
    path.write_text("".join(json.dumps(step._asdict()) + "\n" for step in steps))


def read_trace(path: Path) -> list[StepTrace]:
    return [StepTrace(**json.loads(line)) for line in path.read_text().splitlines()]
