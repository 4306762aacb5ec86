"""What a plan costs around the manager and in the runner's reader: encode, decode, check.

Plans of 256 decoding rows: `write` ones give 16 rows a page, `plain` ones none. Medians in
microseconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from bench.cycle import steady_decode
from bench.recording import record
from runnersvc.bookkeeping import Books
from servicekit.plan import Plan
from servicekit.plan_codec import decode_plan, encode_plan
from servicekit.plan_twin import plan_request

NUM_ROWS, PAGE_SIZE, NUM_STEPS = 256, 16, 400


def main() -> None:
    decode = steady_decode(NUM_ROWS, PAGE_SIZE, NUM_STEPS)
    books = Books(decode.runner)
    figures: dict[str, float] = {}
    accepted: dict[str, list[float]] = {"write": [], "plain": []}
    plans: dict[str, list[Plan]] = {"write": [], "plain": []}
    for plan in decode.first_plans:
        assert books.accept(plan) is None
    for cycle in decode.cycles:
        kind = "write" if len(cycle.plan.write_rows) else "plain"
        began = time.perf_counter()
        assert books.accept(cycle.plan) is None
        accepted[kind].append(time.perf_counter() - began)
        plans[kind].append(cycle.plan)
    for kind, of_kind in plans.items():
        if of_kind:
            figures[f"accept_us_{kind}"] = statistics.median(accepted[kind]) * 1e6
            figures[f"encode_us_{kind}"] = _median_us(plan_request, of_kind)
            figures[f"encode_public_us_{kind}"] = _median_us(encode_plan, of_kind)
            figures[f"decode_us_{kind}"] = _median_us(
                decode_plan, [encode_plan(plan) for plan in of_kind]
            )
    record("cpu.json", "reader", {name: round(value, 1) for name, value in figures.items()})


def _median_us(function: Callable[[Any], object], arguments: list[Any]) -> float:
    seconds = []
    for argument in arguments * 5:
        began = time.perf_counter()
        function(argument)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1e6


if __name__ == "__main__":
    main()
