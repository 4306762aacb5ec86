"""The list of faults of a run: a function of its seed alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

from tests.chaos.chaos_system import EXECUTE, GATEWAYS, SESSIONS

RUNNER, MANAGER, STREAM, GATEWAY = "runner", "manager", "stream", "gateway"
SERVICES = (RUNNER, MANAGER, STREAM, GATEWAY)
KILL, STOP, RESET = "kill", "stop", "reset"
TWO_PLANS, PREFILL, ANY = "two_plans", "prefill", "any"
PROCESSES = {RUNNER: ("runnersvc",), MANAGER: ("cachesvc",), GATEWAY: GATEWAYS}
SHARE_OF_STOPS = 0.35  # of the faults of a process
SHARE_IN_RECOVERY = 0.3


class Fault(NamedTuple):
    """`target` is a process or a stream; `aim` the moment it waits for, after `pause_s`."""

    number: int
    service: str
    kind: str
    target: str
    aim: str
    pause_s: float
    stopped_s: float  # of STOP
    in_recovery: bool  # it does not wait until the ones before are over

    def __str__(self) -> str:
        stopped = f" for {self.stopped_s:.2f} s" if self.kind is STOP else ""
        early = ", in recovery" if self.in_recovery else ""
        return f"fault {self.number}: {self.kind} {self.target}{stopped}, aim {self.aim}{early}"


def faults_of(seed: int, counts: Mapping[str, int]) -> list[Fault]:
    """As many of each service as `counts` says, in random order."""
    rng = random.Random(f"faults {seed}")
    services = [service for service in SERVICES for _ in range(counts.get(service, 0))]
    rng.shuffle(services)
    return [_fault(rng, number, service) for number, service in enumerate(services)]


def _fault(rng: random.Random, number: int, service: str) -> Fault:
    if service == STREAM:
        kind, target = RESET, rng.choice((EXECUTE, EXECUTE, *SESSIONS))
    else:
        kind = STOP if rng.random() < SHARE_OF_STOPS else KILL
        target = rng.choice(PROCESSES[service])
    return Fault(
        number,
        service,
        kind,
        target,
        rng.choice((TWO_PLANS, PREFILL, ANY)),
        pause_s=min(rng.expovariate(1 / 0.3), 1.5),
        stopped_s=rng.choice((rng.uniform(0.02, 0.8), rng.uniform(1.5, 3.0))),
        in_recovery=rng.random() < SHARE_IN_RECOVERY,
    )
