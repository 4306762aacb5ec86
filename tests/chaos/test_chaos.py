"""The short form of `make chaos`, with the same seed each time: whatever is killed, stopped or cut,
every client gets the tokens of the undisturbed run, once each, and every page is accounted for.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.chaos import run_chaos
from tests.chaos.faults import GATEWAY, MANAGER, RUNNER, STREAM, faults_of
from tests.chaos.served import tiny_served
from tests.e2e.tiny_model import make_tiny_model

SEED = 4
COUNTS = {RUNNER: 3, MANAGER: 3, STREAM: 4, GATEWAY: 2}


def test_kills_stops_and_cuts_under_load_lose_and_double_nothing(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    said: list[str] = []
    model_dir = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    served = tiny_served(model_dir, SEED, num_requests=14)
    outcome = run_chaos(served, faults_of(SEED, COUNTS), SEED, tmp_path, said.append)
    assert not outcome.findings, "\n".join([*said, *outcome.findings])
    assert len(outcome.strikes) == sum(COUNTS.values())
    assert outcome.requests > 30
    assert outcome.judged.counts["exact"] > 30
