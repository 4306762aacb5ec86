"""The load of `make load`, small and short, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench.load.figures import figures, levels, missed
from bench.load.streams import Load, Seen, k6_path, run
from bench.load.watch import Process, Sample
from bench.processes import BenchError
from gateway.model_name import resolve

LOAD = Load(streams=2, step_ms=100.0, answer_tokens=10, warm_up_s=1.0, measured_s=6.0)
FLAT = {
    "used_pages": {"first": 40.0, "last": 41.0, "drift": 0.025},
    "gateway_tasks": {"first": 9.0, "last": 9.0, "drift": 0.0},
}
HELD = {"answers_cut": 0, "added_ms_p99": 20.0, "tok_s": 19.5, "due_tok_s": 20}


def seen(rss_bytes: Callable[[int], float] = lambda _: 2.0**20) -> Seen:
    """Six seconds: 114 tokens; the gateway takes 0.3 cores, k6 0.1, the machine 1."""
    samples = [
        Sample(
            at_ms=1e3 * second,
            processes={
                "gateway": Process(0.3 * second, rss_bytes(second)),
                "cachesvc": Process(0.0, 2.0**20),
                "k6": Process(0.1 * second, 2.0**20),
            },
            machine_cpu_s=100.0 + second,
            used_pages=30,
            tasks={"gateway": 9, "cachesvc": 5},
        )
        for second in range(6)
    ]
    added: dict[str, Any] = {"p50": 1.04, "p99": 3.96}
    counts = {"tokens": 114, "deltas": 57, "asked": 12, "answers": 11}
    return Seen({**counts, "added_ms": added}, samples)


def has_k6() -> bool:
    try:
        return bool(k6_path())
    except BenchError:
        return False


@pytest.mark.skipif(not has_k6(), reason="the extra load, k6, is not installed here")
async def test_streams_are_asked_to_their_ends_and_measured() -> None:
    load = Load(streams=4, step_ms=20.0, answer_tokens=25, warm_up_s=0.5, measured_s=2.5)
    measured = await run(load, resolve("smollm2-135m-instruct"))
    told = figures(load, measured)
    assert measured.client["answers"] >= 4
    assert 0 < told["added_ms_p50"] <= told["added_ms_p99"]
    assert 0 < told["tok_s"] <= told["due_tok_s"] == 200
    assert told["tokens_per_delta"] >= 1
    assert levels(measured)["used_pages"]["first"] > 0


def test_cpu_of_a_token_is_the_gateways_and_what_is_not_ours_is_the_others() -> None:
    assert figures(LOAD, seen()) == {
        "answers": 11,
        "answers_cut": 1,
        "due_tok_s": 20,
        "tok_s": 19.0,
        "tokens_per_delta": 2.0,
        "added_ms_p50": 1.0,
        "added_ms_p99": 4.0,
        "cpu_us_per_token": pytest.approx(0.3e6 / 19, abs=0.1),
        "gateway_cores": 0.3,
        "cachesvc_cores": 0.0,
        "k6_cores": 0.1,
        "others_cores": 0.6,
    }


def test_what_grows_differs_between_the_first_third_and_the_last() -> None:
    growing = levels(seen(lambda second: (10 + second) * 2.0**20))
    assert growing["gateway_rss_mib"] == {"first": 10.5, "last": 14.5, "drift": 0.381}
    assert growing["cachesvc_rss_mib"]["drift"] == growing["used_pages"]["drift"] == 0


def test_a_run_within_every_bound_misses_none() -> None:
    assert missed(HELD, FLAT) == []


@pytest.mark.parametrize(
    ("told", "flat", "named"),
    [
        ({"answers_cut": 2}, {}, "answers_cut is 2, at most 0"),
        ({"added_ms_p99": 20.1}, {}, "added_ms_p99 is 20.1, at most 20"),
        ({"tok_s": 18.9}, {}, "tok_s is 18.9, at least 95% of 20"),
        (
            {},
            {"used_pages": {"first": 100.0, "last": 94.0, "drift": -0.06}},
            "used_pages went from 100.0 to 94.0, at most 5% apart",
        ),
    ],
)
def test_a_missed_bound_is_named(
    told: dict[str, float], flat: dict[str, dict[str, float]], named: str
) -> None:
    assert missed(HELD | told, FLAT | flat) == [named]
