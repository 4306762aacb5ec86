"""What a run of streams comes to, and the bounds that it is held to."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from bench.load.streams import Load, Seen
from bench.load.watch import Sample

MAX_ADDED_MS_P99 = 20.0
MAX_DRIFT = 0.05
MIN_SHARE_OF_DUE = 0.95  # a stream waits a few steps between its answers
MIB = 2**20


def figures(load: Load, seen: Seen) -> dict[str, Any]:
    """CPU is in cores, memory in MiB."""
    client, samples = seen
    tok_s = client["tokens"] / load.measured_s
    cores = {
        name: _rate(samples, lambda sample, name=name: sample.processes[name].cpu_s)
        for name in samples[0].processes
    }
    whole = _rate(samples, lambda sample: sample.machine_cpu_s)
    return {
        "answers": client["answers"],
        "answers_cut": client["asked"] - client["answers"],  # still under way long after the end
        "due_tok_s": round(load.due_tok_s),
        "tok_s": round(tok_s, 1),
        "tokens_per_delta": round(client["tokens"] / max(client["deltas"], 1), 2),
        **{f"added_ms_{name}": round(ms, 1) for name, ms in client["added_ms"].items()},
        "cpu_us_per_token": round(cores["gateway"] * 1e6 / max(tok_s, 1), 1),
        **{f"{name}_cores": round(share, 2) for name, share in cores.items()},
        "others_cores": round(max(0.0, whole - sum(cores.values())), 2),
    }


def levels(seen: Seen) -> dict[str, dict[str, float]]:
    """What should stay flat: its mean over the first and over the last third, and the change of the
    one to the other.
    """
    samples = seen.samples
    third = max(1, len(samples) // 3)
    measures: dict[str, Callable[[Sample], float]] = {
        "used_pages": lambda sample: sample.used_pages,
        "gateway_tasks": lambda sample: sample.tasks["gateway"],
        "cachesvc_tasks": lambda sample: sample.tasks["cachesvc"],
        "gateway_rss_mib": lambda sample: sample.processes["gateway"].rss_bytes / MIB,
        "cachesvc_rss_mib": lambda sample: sample.processes["cachesvc"].rss_bytes / MIB,
    }
    told = {}
    for name, measure in measures.items():
        first = statistics.fmean(map(measure, samples[:third]))
        last = statistics.fmean(map(measure, samples[-third:]))
        drift = last / first - 1 if first else 0.0
        told[name] = {
            "first": round(first, 1), "last": round(last, 1), "drift": round(drift, 4)
        }  # fmt: skip
    return told


def missed(told: dict[str, Any], flat: dict[str, dict[str, float]]) -> list[str]:
    """The bounds that a run does not hold, a sentence each."""
    misses = []
    if told["answers_cut"]:
        misses.append(f"answers_cut is {told['answers_cut']}, at most 0")
    if told["added_ms_p99"] > MAX_ADDED_MS_P99:
        misses.append(f"added_ms_p99 is {told['added_ms_p99']}, at most {MAX_ADDED_MS_P99:g}")
    if told["tok_s"] < MIN_SHARE_OF_DUE * told["due_tok_s"]:
        due = f"{MIN_SHARE_OF_DUE:.0%} of {told['due_tok_s']}"
        misses.append(f"tok_s is {told['tok_s']}, at least {due}")
    misses += [
        f"{name} went from {level['first']} to {level['last']}, at most {MAX_DRIFT:.0%} apart"
        for name, level in flat.items()
        if abs(level["drift"]) > MAX_DRIFT
    ]
    return misses


def _rate(samples: list[Sample], measure: Callable[[Sample], float]) -> float:
    first, last = samples[0], samples[-1]
    return (measure(last) - measure(first)) / (last.at_ms - first.at_ms) * 1e3
