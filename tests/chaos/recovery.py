"""What a fault hit, and how long each phase of the recovery took, from the lines of those that
survived and the clients' clocks.

| fault | detection, its end | attach, its end |
|---|---|---|
| runner killed, Execute reset | `runner lost` | `runner attached` |
| runner stopped | `runner silent`, if it was silent for long | – |
| manager killed | the last `session with cachesvc lost` | the last `… opened` or `… attached` |
| manager stopped | `manager silent` of a gateway, likewise | – |
| Session reset | `session with cachesvc lost` of its gateway | `session with cachesvc opened` |
| gateway killed | `session closed` at the manager | its own `session with cachesvc opened` |

Attach begins with the detection, or where a process was started with its `listening`; the time from
its start to there is `start`. `first_token` and `every_token` begin with the end of the attach, and
end with the first and the last of the first tokens that live requests got (`stop`: with SIGCONT).
`health_off` is from the fault to the last gateway's NOT_SERVING, `health_on` from the end of the
attach to the last one's SERVING; a gateway's own death and a short fault have neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.chaos.chaos_system import EXECUTE, GATEWAYS, SESSIONS
from tests.chaos.faults import GATEWAY, KILL, MANAGER, RESET, RUNNER, STOP, Fault
from tests.chaos.heard import Heard
from tests.chaos.log_events import LogEvent, LogReader

LOST, OPENED = "session with cachesvc lost", "session with cachesvc opened"
HEALTH = "health changed"
PHASES = (
    *("detection", "health_off", "start", "attach"),
    *("first_token", "every_token", "health_on"),
)


@dataclass
class Strike:
    """A fault that struck at `at_s`, with what was live then. Times are seconds since 1970."""

    fault: Fault
    at_s: float
    live: list[Heard]
    began_again_s: float | None = None  # the new process was started, or went on
    attached_s: float | None = None
    over_s: float | None = None
    alone: bool = True  # no other fault between `at_s` and `over_s`
    plans_in_flight: int | None = None  # None: nobody tells
    prefill_tokens: int | None = None
    standing: str | None = None  # as what the next manager took the runner, after a MANAGER KILL
    void_because: str | None = None  # of its journal
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        stream = {EXECUTE: " of Execute"}.get(self.fault.target, " of Session")
        what = stream if self.fault.kind == RESET else ""
        return f"{self.fault.service} {self.fault.kind}{what}"


def detections_of(fault: Fault) -> list[tuple[str, str]]:
    """(process, event) of each line that says it; all of them are awaited."""
    match fault.service, fault.kind:
        case (_, kind) if kind == STOP:
            silent = {
                RUNNER: [("cachesvc", "runner silent")],
                MANAGER: [(name, "manager silent") for name in GATEWAYS],
                GATEWAY: [],
            }
            return silent[fault.service]
        case (service, _) if service == RUNNER:
            return [("cachesvc", "runner lost")]
        case (service, _) if service == MANAGER:
            return [(name, LOST) for name in GATEWAYS]
        case (service, _) if service == GATEWAY:
            return [("cachesvc", "session closed")]
    if fault.target == EXECUTE:
        return [("cachesvc", "runner lost")]
    return [(_gateway_of(fault), LOST)]


def attaches_of(fault: Fault) -> list[tuple[str, str]]:
    """(process, event) of each line that says that it is connected again."""
    if fault.kind == STOP:
        return []
    if fault.service == MANAGER:
        return [("cachesvc", "runner attached"), *((name, OPENED) for name in GATEWAYS)]
    if fault.service == GATEWAY:
        return [(fault.target, OPENED)]
    if fault.service == RUNNER or fault.target == EXECUTE:
        return [("cachesvc", "runner attached")]
    return [(_gateway_of(fault), OPENED)]


def _gateway_of(fault: Fault) -> str:
    return GATEWAYS[SESSIONS.index(fault.target)]


def attached_s(logs: LogReader, strike: Strike) -> float | None:
    """When all was connected again; None while it is not."""
    if strike.fault.kind == STOP:
        return strike.began_again_s
    since_s = strike.at_s if strike.began_again_s is None else strike.began_again_s
    found = [logs.after(*line, since_s) for line in attaches_of(strike.fault)]
    return _last(found)


def _last(found: list[LogEvent | None]) -> float | None:
    """None where one of them did not come."""
    times = [each.at_s for each in found if each is not None]
    return max(times) if times and len(times) == len(found) else None


def measure(logs: LogReader, strike: Strike) -> None:
    """Fill in what it hit and its phases, once it is over."""
    _tell_what_it_hit(logs, strike)
    if strike.fault.service == MANAGER and strike.fault.kind == KILL:
        _tell_what_was_kept(logs, strike)
    fault, phases = strike.fault, strike.phases
    found = [logs.after(*line, strike.at_s) for line in detections_of(fault)]
    detected_s = _last(found)
    over_s = strike.began_again_s if fault.kind == STOP else strike.over_s
    if detected_s is not None and over_s is not None and detected_s <= over_s:
        phases["detection"] = detected_s - strike.at_s
    attached = strike.attached_s
    if attached is None:
        return
    if fault.kind == KILL and strike.began_again_s is not None:
        listening = logs.after(fault.target, "listening", strike.began_again_s)
        if listening is not None:
            phases["start"] = listening.at_s - strike.began_again_s
            phases["attach"] = attached - listening.at_s
    elif fault.kind == RESET and detected_s is not None:
        phases["attach"] = attached - detected_s
    firsts = [heard.first_token_after(attached) for heard in strike.live]
    later = [first - attached for first in firsts if first is not None]
    if later:
        phases["first_token"], phases["every_token"] = min(later), max(later)


def _tell_what_was_kept(logs: LogReader, strike: Strike) -> None:
    attached = logs.after("cachesvc", "runner attached", strike.at_s)
    void = logs.after("cachesvc", "journal void", strike.at_s)
    strike.standing = None if attached is None else attached.fields.get("standing")
    strike.void_because = None if void is None else void.fields.get("reason")


def measure_health(logs: LogReader, strike: Strike) -> None:
    """Likewise, once later lines are there: health may come back after what was live goes on."""
    attached_s = strike.attached_s
    if strike.fault.service == GATEWAY or strike.over_s is None or attached_s is None:
        return
    off = [logs.after(name, HEALTH, strike.at_s, serving="false") for name in GATEWAYS]
    off_s = _last([each if each and each.at_s < strike.over_s else None for each in off])
    if off_s is None:
        return
    strike.phases["health_off"] = off_s - strike.at_s
    on_s = _last(
        [logs.after(each.process, HEALTH, each.at_s, serving="true") for each in off if each]
    )
    if on_s is not None:
        strike.phases["health_on"] = max(0.0, on_s - attached_s)


def _tell_what_it_hit(logs: LogReader, strike: Strike) -> None:
    tellers = {
        "runnersvc": ("cachesvc", "runner silent" if strike.fault.kind == STOP else "runner lost"),
        EXECUTE: ("cachesvc", "runner lost"),
        "cachesvc": ("runnersvc", "manager lost"),
    }
    if strike.fault.target not in tellers or strike.over_s is None:
        return
    line = logs.after(*tellers[strike.fault.target], strike.at_s)
    if line is not None and line.at_s <= strike.over_s:
        strike.plans_in_flight = line.number("plans_in_flight")
        strike.prefill_tokens = line.number("prefill_tokens")
