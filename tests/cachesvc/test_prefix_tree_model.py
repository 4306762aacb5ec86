"""The prefix tree under random histories, against a dict of pages."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.cachesvc.tree_machine import TreeMachine

TestPrefixTree = TreeMachine.TestCase
TestPrefixTree.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
