"""What is kept of a run, and what it must have reached."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tests.chaos.chaos import Outcome
from tests.chaos.faults import SERVICES
from tests.chaos.recovery import PHASES, Strike
from tests.chaos.verdict import DOUBLED, EXACT, LEFT, LOST, MISMATCHED

MUST_STRIKE = {"runner": 60, "manager": 60, "stream": 60, "gateway": 30}
MUST_HIT = {"two_plans": 30, "prefill": 30}
MUST_TAKE = ("resent_plans", "resent_results", "adopted_pages", "readmitted_requests")


def moments_of(strike: Strike) -> list[str]:
    if strike.plans_in_flight is None:
        return ["untold"]
    found = {
        "two_plans": strike.plans_in_flight >= 2,
        "one_plan": strike.plans_in_flight == 1,
        "no_plan": strike.plans_in_flight == 0,
        "prefill": (strike.prefill_tokens or 0) > 0,
    }
    return [moment for moment, is_so in found.items() if is_so]


def figures_of(seed: int, seconds: int, outcomes: Sequence[Outcome]) -> dict[str, object]:
    strikes = [strike for outcome in outcomes for strike in outcome.strikes]
    verdicts = sum((outcome.judged.counts for outcome in outcomes), Counter[str]())
    return {
        "seed": seed,
        "seconds": seconds,
        "faults": {name: _faults(strikes, name) for name in SERVICES},
        "moments": dict(Counter(moment for each in strikes for moment in moments_of(each))),
        "faults_by_model": {each.served.name: len(each.strikes) for each in outcomes},
        "in_recovery_of_another": sum(not strike.alone for strike in strikes),
        "requests": sum(outcome.requests for outcome in outcomes),
        "tokens": sum(outcome.tokens for outcome in outcomes),
        "exact": verdicts[EXACT],
        "left_by_their_clients": verdicts[LEFT],
        "lost": verdicts[LOST],
        "doubled": verdicts[DOUBLED],
        "mismatched": verdicts[MISMATCHED],
        "leaked_pages": sum(outcome.leaked_pages for outcome in outcomes),
        "equations_held": sum(outcome.stats_answers for outcome in outcomes),
        "resumed_by_clients": sum(outcome.resumed for outcome in outcomes),
        "turned_away_and_sent_again": _sum(outcome.turned_away for outcome in outcomes),
        "standings_after_lone_manager_kills": dict(
            Counter(each.standing for each in strikes if each.alone and each.standing)
        ),
        "recovered": _sum(outcome.recovered for outcome in outcomes),
        "recovery_s": {
            outcome.served.name: recovery_times(outcome.strikes) for outcome in outcomes
        },
    }


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _faults(strikes: Iterable[Strike], service: str) -> dict[str, int]:
    of_service = [strike for strike in strikes if strike.fault.service == service]
    kinds = Counter(strike.label.removeprefix(f"{service} ") for strike in of_service)
    moments = Counter(moment for strike in of_service for moment in moments_of(strike))
    return {"all": len(of_service), **kinds, **moments}


def recovery_times(strikes: Iterable[Strike]) -> dict[str, dict[str, dict[str, float]]]:
    """[p50, p90, max] of each phase by kind of fault, in seconds, of faults without another one in
    their recovery.
    """
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for strike in strikes:
        if strike.alone:
            for phase, took_s in strike.phases.items():
                found[strike.label][phase].append(took_s)
    return {
        label: {phase: _spread(phases[phase]) for phase in PHASES if phase in phases}
        for label, phases in sorted(found.items())
    }


def _spread(times_s: list[float]) -> dict[str, float]:
    ordered = sorted(times_s)
    return {
        "count": len(ordered),
        "p50": round(ordered[len(ordered) // 2], 3),
        "p90": round(ordered[len(ordered) * 9 // 10], 3),
        "max": round(ordered[-1], 3),
    }


def missed(figures: Mapping[str, object]) -> list[str]:
    """What a recorded run must reach and did not."""
    faults, moments, recovered = figures["faults"], figures["moments"], figures["recovered"]
    assert isinstance(faults, dict)
    assert isinstance(moments, dict)
    assert isinstance(recovered, dict)
    lines = [
        f"{faults[name]['all']} faults of {name}, {least} are wanted"
        for name, least in MUST_STRIKE.items()
        if faults[name]["all"] < least
    ]
    lines += [f"{name} is 0" for name in MUST_TAKE if not recovered.get(name)]
    return lines + [
        f"{moments.get(name, 0)} faults hit {name}, {least} are wanted"
        for name, least in MUST_HIT.items()
        if moments.get(name, 0) < least
    ]


def table(figures: Mapping[str, object]) -> str:
    """Recovery times, one line for each phase of each kind."""
    times = figures["recovery_s"]
    assert isinstance(times, dict)
    lines = [
        f"{'model':8} {'fault':26} {'phase':12} {'count':>5} {'p50 s':>7} {'p90':>7} {'max':>7}"
    ]
    for model, kinds in times.items():
        for label, phases in kinds.items():
            lines += [
                f"{model:8} {label:26} {phase:12} {spread['count']:5} {spread['p50']:7.3f} "
                f"{spread['p90']:7.3f} {spread['max']:7.3f}"
                for phase, spread in phases.items()
            ]
    return "\n".join(lines)
