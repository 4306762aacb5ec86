"""`make load`: many streams through the public gRPC API, on a runner without a model.

Sixty-four clients (k6) ask one answer after the other, at 20 tokens a second each. Judged are what
gateway and network add to a token, from the manager's `sent_at_us` to the client, and whether
pages, tasks and memory stay where they are. Then the steps get faster until the gateway carries no
more. `cpu.json` keeps it all under `gateway`; ends with 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from bench.load.figures import MAX_ADDED_MS_P99, figures, levels, missed
from bench.load.streams import Load, Seen, run
from bench.processes import BenchError
from bench.recording import record
from gateway.model_name import resolve

MODEL = "smollm2-135m-instruct"
STREAMS, STEP_MS = 64, 50.0
ANSWER_TOKENS = 200
FASTER_ANSWER_S, FASTER_MEASURED_S = 4.0, 6.0  # of the faster steps
MIN_GAIN = 1.1  # of steps twice as fast: with less, the gateway carries no more


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="that are judged")
    parser.add_argument("--no-ceiling", action="store_true", help="leave the faster steps out")
    given = parser.parse_args()
    try:
        misses = asyncio.run(
            _measure(resolve(MODEL), given.seconds, with_ceiling=not given.no_ceiling)
        )
    except BenchError as error:
        sys.exit(f"make load: no figures: {error}")
    if misses:
        sys.exit("make load: missed: " + "; ".join(misses))


async def _measure(model_dir: Path, measured_s: float, *, with_ceiling: bool) -> list[str]:
    load_average = os.getloadavg()[0]
    load = Load(STREAMS, STEP_MS, ANSWER_TOKENS, ANSWER_TOKENS * STEP_MS / 1e3 + 5, measured_s)
    seen = await _run(load, model_dir)
    told, flat = figures(load, seen), levels(seen)
    misses = missed(told, flat)
    rows = [told]
    kept = {
        "load_average_before": round(load_average, 2),
        "streams": STREAMS,
        "measured_s": measured_s,
        **told,
        "flat": flat,
        "missed": misses,
    }
    if with_ceiling:
        rows += await _faster(told["tok_s"], model_dir)
        within = [each["tok_s"] for each in rows if each["added_ms_p99"] <= MAX_ADDED_MS_P99]
        kept |= {
            "max_tok_s": max(each["tok_s"] for each in rows),
            "max_tok_s_within_bound": max(within, default=None),
            "faster_steps": rows[1:],
        }
    record("cpu.json", "gateway", kept)
    _print_table(rows, flat)
    return misses


async def _faster(tok_s: float, model_dir: Path) -> list[dict[str, Any]]:
    """Figures of steps twice as fast, and twice as fast again, until that brings no more tokens a
    second than `tok_s`, or than the steps before.
    """
    rows: list[dict[str, Any]] = []
    step_ms, best_tok_s, gains = STEP_MS, tok_s, True
    while gains:
        step_ms /= 2
        answer_tokens = round(FASTER_ANSWER_S * 1e3 / step_ms)
        load = Load(STREAMS, step_ms, answer_tokens, FASTER_ANSWER_S + 1, FASTER_MEASURED_S)
        rows.append(figures(load, await _run(load, model_dir)))
        gains = rows[-1]["tok_s"] > MIN_GAIN * best_tok_s
        best_tok_s = max(best_tok_s, rows[-1]["tok_s"])
    return rows


async def _run(load: Load, model_dir: Path) -> Seen:
    pace = f"{load.streams} streams, {1e3 / load.step_ms:g} tokens a second each"
    print(f"{pace}, {load.measured_s:g} s", flush=True)
    return await run(load, model_dir)


def _print_table(rows: list[dict[str, Any]], flat: dict[str, dict[str, float]]) -> None:
    print(f"\n{'':20}{'first third':>14}{'last third':>14}{'change':>10}")
    for name, level in flat.items():
        print(f"{name:20}{level['first']:14}{level['last']:14}{level['drift']:10.1%}")
    columns = {
        "due_tok_s": "due tok/s",
        "tok_s": "tok/s",
        "tokens_per_delta": "a delta",
        "added_ms_p50": "added ms p50",
        "added_ms_p99": "p99",
        "cpu_us_per_token": "us a token",
        "gateway_cores": "gateway",
        "cachesvc_cores": "cachesvc",
        "runnersvc_cores": "runner",
        "k6_cores": "k6",
        "others_cores": "others, cores",
    }
    widths = [max(9, len(title) + 2) for title in columns.values()]
    print()
    for row in [columns, *rows]:
        print("".join(f"{row[name]:>{width}}" for name, width in zip(columns, widths, strict=True)))


if __name__ == "__main__":
    main()
