"""Strikes: waits for the moment that a fault aims at, harms a process or a stream, starts again
what it killed, and waits until everything that was live goes on.

One rule bounds where faults may fall. The manager fails a request that took part in two deaths of
runners without a token in between (it may be what kills them). So a runner dies only once every
request that was live at its last death, and had not ended, has a token of the new runner. All
other faults may come at any time, also while an earlier one is being recovered from; but never two
at once at one target.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence

from tests.chaos.chaos_system import GATEWAYS, ChaosSystem
from tests.chaos.faults import KILL, PREFILL, RESET, TWO_PLANS, Fault
from tests.chaos.load import Load
from tests.chaos.log_events import LogReader
from tests.chaos.recovery import Strike, attached_s, measure, measure_health
from tests.chaos.stats_watch import StatsWatch

LOOK_S = 0.01
AIMS_FOR_S = 2.0  # then it strikes whatever the moment is
RECOVERS_WITHIN_S = 120.0


class StuckError(Exception):
    """The system did not come back from a fault: nothing after it would mean anything."""


class Striker:
    """`strikes` are those that struck, in order."""

    def __init__(self, system: ChaosSystem, load: Load, watch: StatsWatch, logs: LogReader) -> None:
        self._system, self._load, self._watch, self._logs = system, load, watch, logs
        self._recoveries: dict[str, asyncio.Task[None]] = {}  # by target
        self.strikes: list[Strike] = []

    async def strike_all(self, faults: Sequence[Fault], say: Callable[[str], None]) -> None:
        """One after the other. Errors: StuckError."""
        try:
            for fault in faults:
                await self._wait_for_turn(fault)
                await asyncio.sleep(fault.pause_s)
                await self._aim(fault.aim)
                strike = await self._strike(fault)
                say(f"{strike.at_s:.3f} {fault}, {len(strike.live)} live")
                self._recoveries[fault.target] = asyncio.create_task(self._recover(strike))
            await self._recovered(*self._recoveries)
            self._logs.read()
            for strike in self.strikes:
                measure_health(self._logs, strike)
        finally:
            for task in self._recoveries.values():
                task.cancel()
            await asyncio.gather(*self._recoveries.values(), return_exceptions=True)

    async def _wait_for_turn(self, fault: Fault) -> None:
        await self._recovered(*([fault.target] if fault.in_recovery else self._recoveries))

    async def _recovered(self, *targets: str) -> None:
        for target in targets:
            if (task := self._recoveries.get(target)) is not None:
                await task

    async def _aim(self, aim: str) -> None:
        over_s = time.monotonic() + AIMS_FOR_S
        while time.monotonic() < over_s:
            if aim == TWO_PLANS:
                hits = self._watch.plans_in_flight >= 2
            elif aim == PREFILL:
                hits = self._load.prefilling()
            else:
                hits = len(self._load.live) > 0
            if hits:
                return
            await asyncio.sleep(LOOK_S / 2)

    async def _strike(self, fault: Fault) -> Strike:
        for stream, way in fault.losses:
            self._system.cutters[stream].swallow(way)
        if fault.losses:
            await asyncio.sleep(fault.loses_for_s)
        at_s = time.time()
        if fault.kind == RESET:
            over_s = time.monotonic() + RECOVERS_WITHIN_S
            cutter = self._system.cutters[fault.target]
            while not await asyncio.to_thread(cutter.cut):  # nothing was connected
                if time.monotonic() > over_s:
                    raise StuckError(f"{fault}: there is no such stream")
                await asyncio.sleep(LOOK_S)
                at_s = time.time()
        else:
            if fault.kind == KILL:
                self._close_door(fault.target)
            number = signal.SIGKILL if fault.kind == KILL else signal.SIGSTOP
            self._system.processes[fault.target].send_signal(number)
            for stream in dict.fromkeys(stream for stream, _ in fault.losses):
                await asyncio.to_thread(self._system.cutters[stream].cut)
        for earlier in self.strikes:
            if earlier.over_s is None:
                earlier.alone = False
        is_alone = all(earlier.over_s is not None for earlier in self.strikes)
        live = [heard for _, _, heard in self._load.live.values()]
        self.strikes.append(Strike(fault, at_s, live, alone=is_alone))
        return self.strikes[-1]

    def _close_door(self, target: str) -> None:
        for door in self._load.doors:
            if door.name == target:
                door.deaths += 1
                door.is_up = False

    def _open_door(self, target: str) -> None:
        for door in self._load.doors:
            door.is_up = door.is_up or door.name == target

    async def _recover(self, strike: Strike) -> None:
        fault, system = strike.fault, self._system
        if fault.kind == KILL:
            await asyncio.to_thread(system.processes[fault.target].wait)
            strike.began_again_s = time.time()
            system.start_one(fault.target)
        elif fault.kind != RESET:
            await asyncio.sleep(fault.stopped_s)
            strike.began_again_s = time.time()
            system.processes[fault.target].send_signal(signal.SIGCONT)
        over_s = time.monotonic() + RECOVERS_WITHIN_S
        while not self._is_over(strike):
            if time.monotonic() > over_s:
                raise StuckError(self._describe(strike))
            await asyncio.sleep(LOOK_S)
        strike.over_s = time.time()
        self._logs.read()
        measure(self._logs, strike)
        strike.live.clear()

    def _is_over(self, strike: Strike) -> bool:
        if strike.attached_s is None:
            self._logs.read()
            strike.attached_s = attached_s(self._logs, strike)
            if strike.attached_s is None:
                return False
            if strike.fault.target in GATEWAYS:
                self._open_door(strike.fault.target)
        after_s = strike.attached_s
        return all(heard.went_on_after(after_s) for heard in strike.live)

    def _describe(self, strike: Strike) -> str:
        held = [each for each in strike.live if not each.went_on_after(strike.attached_s or 0)]
        dead = [n for n, each in self._system.processes.items() if each.poll() is not None]
        return (
            f"{strike.fault} at {strike.at_s:.3f}: not over after {RECOVERS_WITHIN_S} s; attached: "
            f"{strike.attached_s is not None}; {len(held)} requests stand still; dead: {dead}"
        )
