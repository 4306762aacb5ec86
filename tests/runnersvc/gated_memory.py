"""A model that executes a plan when the test lets it."""

from __future__ import annotations

import threading

from servicekit.plan import Int32Array, Plan, RunnerDescription
from tests.cachesvc.fake_runner import FakeMemory


class GatedMemory(FakeMemory):
    """The fake memory; while `gate` is not set, the executor stands before its next plan."""

    def __init__(self, runner: RunnerDescription) -> None:
        super().__init__(runner)
        self.gate = threading.Event()
        self.gate.set()
        self.num_executed = 0

    def execute(self, plan: Plan) -> Int32Array:
        self.gate.wait()
        self.num_executed += 1
        return super().execute(plan)
