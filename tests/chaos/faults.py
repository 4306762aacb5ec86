"""The list of faults of a run: a function of its seed alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

from tests.chaos.chaos_system import EXECUTE, GATEWAYS, SESSIONS
from tests.e2e.stream_cutter import Way

RUNNER, MANAGER, STREAM, GATEWAY = "runner", "manager", "stream", "gateway"
SERVICES = (RUNNER, MANAGER, STREAM, GATEWAY)
KILL, STOP, RESET = "kill", "stop", "reset"
TWO_PLANS, PREFILL, ANY = "two_plans", "prefill", "any"
PROCESSES = {RUNNER: ("runnersvc",), MANAGER: ("cachesvc",), GATEWAY: GATEWAYS}
SHARE_OF_STOPS = 0.35  # of the faults of a process
SHARE_IN_RECOVERY = 0.3
SHARE_OF_LOSSES = 0.6  # of kills and resets of what a stream leads to
PLANS, RESULTS = (EXECUTE, "to_back"), (EXECUTE, "to_front")
COMMANDS = [(session, "to_back") for session in SESSIONS]
TOKENS = [(session, "to_front") for session in SESSIONS]
LOSABLE: dict[str, list[tuple[str, Way]]] = {  # (stream, way) by target
    "runnersvc": [PLANS, RESULTS],
    "cachesvc": [PLANS, RESULTS, *COMMANDS, *TOKENS],
    EXECUTE: [PLANS, RESULTS],
    **{session: [COMMANDS[nth], TOKENS[nth]] for nth, session in enumerate(SESSIONS)},
}


class Fault(NamedTuple):
    """`target` is a process or a stream; `aim` the moment it waits for, after `pause_s`."""

    number: int
    service: str
    kind: str
    target: str
    aim: str
    pause_s: float
    stopped_s: float  # of STOP
    losses: tuple[tuple[str, Way], ...]  # what is lost on its way before a KILL or RESET
    loses_for_s: float
    in_recovery: bool  # it does not wait until the ones before are over

    def __str__(self) -> str:
        stopped = f" for {self.stopped_s:.2f} s" if self.kind is STOP else ""
        lost = "".join(f", {stream} lost {way}" for stream, way in self.losses)
        early = ", in recovery" if self.in_recovery else ""
        return (
            f"fault {self.number}: {self.kind} {self.target}{stopped}, aim {self.aim}{lost}{early}"
        )


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
    losses: list[tuple[str, Way]] = []
    if kind != STOP and target in LOSABLE and rng.random() < SHARE_OF_LOSSES:
        losses = rng.sample(LOSABLE[target], rng.choice((1, 1, 2)))
    return Fault(
        number,
        service,
        kind,
        target,
        rng.choice((TWO_PLANS, PREFILL, ANY)),
        pause_s=min(rng.expovariate(1 / 0.3), 1.5),
        stopped_s=rng.choice((rng.uniform(0.02, 0.8), rng.uniform(1.5, 3.0))),
        losses=tuple(losses),
        loses_for_s=rng.uniform(0.005, 0.06),
        in_recovery=rng.random() < SHARE_IN_RECOVERY,
    )
