"""The state machine of the manager for long, with another seed each time: `make soak`.

    python -m tests.cachesvc.soak [--steps 200000] [--seed N]

A history that fails is shrunk, printed with its seed, and ends the run; figures of a run that
found none go to bench/results/soak.json.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import time
from dataclasses import asdict, dataclass

import structlog
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from bench.recording import record
from tests.cachesvc.machine import ManagerMachine

HISTORIES_A_SEED = 500


@dataclass
class Figures:
    steps: int = 0  # rules that ran
    histories: int = 0
    plans: int = 0
    preempted: int = 0
    healed: int = 0


FIGURES = Figures()


class SoakMachine(ManagerMachine):
    """Counts what it did."""

    @invariant()
    def a_rule_ran(self) -> None:
        FIGURES.steps += 1

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "world"):
            FIGURES.steps -= 1  # the start of a history is no rule
            FIGURES.histories += 1
            FIGURES.plans += len(self.world.wire.sent)
            FIGURES.preempted += self.world.core.ready_scheduler().totals.preempted
            FIGURES.healed += self.world.core.healer.healed_total


def soak(least_steps: int, first_seed: int) -> float:
    """Run until so many rules ran. Returns the seconds that took."""
    began_s = time.monotonic()
    number = first_seed
    while FIGURES.steps < least_steps:
        print(f"seed {number}: {FIGURES}", flush=True)
        run_state_machine_as_test(
            seed(number)(SoakMachine),
            settings=settings(
                max_examples=HISTORIES_A_SEED,
                stateful_step_count=60,
                deadline=None,
                database=None,
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
        number += 1
    return time.monotonic() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    given = parser.parse_args()
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet, cache_logger_on_first_use=False)
    seconds = soak(given.steps, given.seed)
    record("soak.json", "soak", {**asdict(FIGURES), "seconds": round(seconds), "seed": given.seed})


if __name__ == "__main__":
    main()
