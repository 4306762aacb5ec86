"""The manager under random histories of requests and faults."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.cachesvc.machine import ManagerMachine

TestManagerMachine = ManagerMachine.TestCase
TestManagerMachine.settings = settings(
    max_examples=250,
    stateful_step_count=50,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
