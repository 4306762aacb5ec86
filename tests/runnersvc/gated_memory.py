"""A model that executes a plan when the test lets it."""

from __future__ import annotations

import threading
import time

import numpy as np

from runnersvc.executor import AtOnce
from servicekit.plan import Int32Array, Plan, RunnerDescription
from tests.cachesvc.fake_runner import FakeMemory


class GatedMemory(FakeMemory):
    """The fake memory; while `gate` is not set, the executor stands before its next plan."""

    def __init__(self, runner: RunnerDescription) -> None:
        super().__init__(runner)
        self.gate = threading.Event()
        self.gate.set()
        self.num_executed = 0
        self._broken_plan_id = 0

    def break_at(self, plan_id: int) -> None:
        """Raise when that plan is executed."""
        self._broken_plan_id = plan_id

    def launch(self, plan: Plan) -> AtOnce:
        began = time.perf_counter()
        return AtOnce(self.execute(plan), began)

    def execute(self, plan: Plan) -> Int32Array:
        self.gate.wait()
        if plan.plan_id == self._broken_plan_id:
            raise RuntimeError(f"the device broke at plan {plan.plan_id}")
        self.num_executed += 1
        return super().execute(plan)

    def read_table(self) -> Int32Array:
        """What the rows map, and position + row * width where nothing is: 4 rows of 32."""
        page_table = np.arange(4 * 32, dtype=np.int32).reshape(4, 32)
        for idx, row in self.rows.items():
            for position, loc in row.table.items():
                page_table[idx, position] = loc
        return page_table
