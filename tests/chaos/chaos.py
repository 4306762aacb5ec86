"""One model under chaos: the undisturbed answers first, then the same requests under faults."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.chaos_system import ChaosSystem, chaos_system
from tests.chaos.faults import Fault
from tests.chaos.heard import Heard
from tests.chaos.load import Load
from tests.chaos.log_events import LogReader
from tests.chaos.pool import Use, use_of
from tests.chaos.recovery import Strike
from tests.chaos.served import Served
from tests.chaos.stats_watch import StatsWatch
from tests.chaos.striker import Striker, StuckError
from tests.chaos.undisturbed import NUM_CLIENTS, Pool, undisturbed_pool
from tests.chaos.verdict import Judged

MOST_WRONG = 25  # then a run ends early
OUR_FAULTS = ("error", "critical")  # levels of lines that no fault excuses
RECOVERED = {  # (event, key) of lines that tell by which way it came back
    "resent_plans": ("runner attached", "resent_plans"),
    "resent_results": ("runner attached", "resent_results"),
    "adopted_pages": ("runner attached", "adopted_pages"),
    "readmitted_requests": ("runner attached", "readmitted"),
    "resubmitted_requests": ("requests resubmitted", "requests"),
    "resubmitted_tokens": ("requests resubmitted", "held_tokens"),
    "aborted_requests": ("session closed", "aborted"),
}


@dataclass
class Outcome:
    """Of one model. `troubles` are what is wrong beside wrong answers."""

    served: Served
    judged: Judged = field(default_factory=Judged)
    strikes: list[Strike] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    leaked_pages: int = 0
    requests: int = 0
    tokens: int = 0
    resumed: int = 0
    turned_away: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    stats_answers: int = 0
    recovered: dict[str, int] = field(default_factory=dict)

    @property
    def findings(self) -> list[str]:
        leaked = [f"{self.leaked_pages} pages leaked"] if self.leaked_pages else []
        return [*self.judged.findings, *leaked, *self.troubles]


def run_chaos(
    served: Served, faults: Sequence[Fault], seed: int, run_dir: Path, say: Callable[[str], None]
) -> Outcome:
    """All of it, in `run_dir`, where the logs stay. Errors: UndisturbedError."""
    outcome = Outcome(served)
    logs = LogReader(run_dir)
    with chaos_system(served.model_dir, run_dir, **served.settings) as system:
        load = Load(system.doors)
        pool = asyncio.run(undisturbed_pool(load, served.model_dir, served.asked, seed))
        say(f"{served.name}: {len(pool.asked)} requests, {pool.left_out} left out")
        outcome.left_out = pool.left_out
        asyncio.run(_under_faults(system, load, pool, faults, seed, outcome, logs, say))
        if not outcome.troubles:
            system.wait_all_serving()
        outcome.troubles += system.stop_and_look()
    logs.read()
    outcome.troubles += _said_of_ours(logs)
    outcome.recovered = {name: logs.total(*line) for name, line in RECOVERED.items()}
    return outcome


async def _under_faults(
    system: ChaosSystem,
    load: Load,
    pool: Pool,
    faults: Sequence[Fault],
    seed: int,
    outcome: Outcome,
    logs: LogReader,
    say: Callable[[str], None],
) -> None:
    numbers, over = itertools.count(), asyncio.Event()
    judged = outcome.judged

    def next_use() -> Use | None:
        return None if over.is_set() else use_of(seed, next(numbers), pool.asked)

    def judge(use: Use, heard: Heard) -> None:
        outcome.requests += 1
        outcome.tokens += heard.num_tokens
        findings = len(judged.findings)
        judged.judge(pool.truths[use.asked.number], heard, use)
        for finding in judged.findings[findings:]:
            say(finding)
        if judged.wrong >= MOST_WRONG:
            over.set()

    watch = StatsWatch(system.cache_address)
    watching = asyncio.create_task(watch.run())
    striker = Striker(system, load, watch, logs)
    asking = asyncio.create_task(load.ask_one_after_the_other(NUM_CLIENTS, next_use, judge))
    striking = asyncio.create_task(striker.strike_all(faults, say))
    await asyncio.wait((asking, striking), return_when=asyncio.FIRST_COMPLETED)
    over.set()
    try:
        if not striking.done():
            outcome.troubles.append(f"ended early, after {len(striker.strikes)} faults")
            striking.cancel()
        await striking
    except asyncio.CancelledError:
        pass  # ours
    except StuckError as stuck:
        outcome.troubles.append(str(stuck))
        asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    outcome.strikes = striker.strikes
    outcome.resumed, outcome.turned_away = load.resumed, dict(load.turned_away)
    if not outcome.troubles:
        await _look_at_the_end(system, outcome)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    outcome.leaked_pages = max(outcome.leaked_pages, watch.leaked_pages)
    outcome.stats_answers = watch.answers
    outcome.troubles += [
        f"{strike.fault}, alone, and the journal was void: {strike.void_because}"
        for strike in striker.strikes
        if strike.alone and strike.void_because
    ]
    outcome.troubles += [f"{name} was {count}" for name, count in watch.troubles.items()]


async def _look_at_the_end(system: ChaosSystem, outcome: Outcome) -> None:
    try:
        await system.settled()
    except TimeoutError:
        stats = system.stats()
        outcome.leaked_pages = stats.num_pages - stats.free_pages - stats.evictable_pages
        outcome.troubles.append(f"it does not settle: {stats}")
    outcome.troubles += [f"violation: {each}" for each in system.violations()]


def _said_of_ours(logs: LogReader) -> list[str]:
    """Lines that no fault excuses."""
    lines = [
        f"{process} logged {each.level}: {each.event} {each.fields}"
        for process, events in logs.events.items()
        for each in events
        if each.level in OUR_FAULTS
    ]
    stacks = [stray for stray in logs.strays if "Traceback" in stray]
    return lines + stacks
