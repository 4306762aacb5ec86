"""Host time of one step of 256 decoding rows, at the manager and in the runner's reader, no device.

A cycle is what the manager does between a result and the next plan: take the result in, schedule,
build the plan, encode it, and put the tokens into the session's outbox. `accept_us` is the check of
the plan against the runner's books. Medians, in microseconds; `write` plans have a table write of
256 entries, as one in sixteen rows begins a page, `plain` ones have none.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from bench.recording import record
from cachesvc.core import Core
from cachesvc.limits import Limits
from cachesvc.request import Finished, Submission
from cachesvc.session import GatewaySession
from runnersvc.bookkeeping import Books
from servicekit.plan import Attached, Plan, Result, RunnerDescription
from servicekit.plan_codec import decode_plan, encode_plan
from servicekit.plan_twin import plan_request
from servicekit.sampling import Sampling

NUM_ROWS = 256
NUM_STEPS = 600
RUNNER = RunnerDescription(
    model_fingerprint="bench",
    num_layers=1,
    num_kv_heads=1,
    head_dim=1,
    dtype="float32",
    page_size=16,
    num_pages=NUM_ROWS * 128,
    num_rows=NUM_ROWS,
    max_seq_len=2048,
    vocab_size=1000,
    rank=0,
    num_ranks=1,
)


def main() -> None:
    figures: dict[str, float] = {}
    for kind, stagger in (("write", 16), ("plain", 1)):
        cycles, accepts, plans = _decode(stagger)
        figures[f"cycle_us_{kind}"] = cycles
        figures[f"accept_us_{kind}"] = accepts
        figures[f"encode_us_{kind}"] = _median_us(plan_request, plans)
        figures[f"encode_public_us_{kind}"] = _median_us(encode_plan, plans)
        figures[f"decode_us_{kind}"] = _median_us(
            decode_plan, [encode_plan(plan) for plan in plans]
        )
    record("cpu.json", "manager", {name: round(value, 1) for name, value in figures.items()})


def _decode(stagger: int) -> tuple[float, float, list[Plan]]:
    """Steady decode of rows whose lengths differ by up to `stagger`: medians, and some plans."""
    core = Core(Limits(step_budget_tokens=NUM_ROWS * 128, credits=2))
    core.attached(Attached(RUNNER, "boot", 0, ""))
    books, session = Books(RUNNER), GatewaySession(1, "")
    no_stop = np.zeros(0, dtype=np.int32)
    for key in range(NUM_ROWS):
        prompt = np.zeros(100 + key % stagger, dtype=np.int32)
        core.submit(1, Submission(key, str(key), prompt, Sampling(temperature=0), None, no_stop))
    sent = [core.next_plan(), core.next_plan()]
    for plan in sent:
        assert books.accept(plan) is None
    cycles, accepts, plans = [], [], []
    for _ in range(NUM_STEPS):
        oldest = sent.pop(0)
        sampled_ids = np.full(int(oldest.step_samples.sum()), 5, dtype=np.int32)
        began = time.perf_counter()
        core.result(Result(oldest.plan_id, sampled_ids, 0, 0))
        plan = core.next_plan()
        plan_request(plan).SerializeToString()
        for output in core.take_outputs():
            assert not isinstance(output, Finished)
            session.put_tokens(output.keys.tolist(), output.token_ids.tolist())
        cycles.append(time.perf_counter() - began)
        sent.append(plan)
        began = time.perf_counter()
        assert books.accept(plan) is None
        accepts.append(time.perf_counter() - began)
        plans.append(plan)
    wanted = [bool(len(plan.write_rows)) == (stagger > 1) for plan in plans]
    return (
        _median(cycle for cycle, is_wanted in zip(cycles, wanted, strict=True) if is_wanted),
        _median(accept for accept, is_wanted in zip(accepts, wanted, strict=True) if is_wanted),
        [plan for plan, is_wanted in zip(plans, wanted, strict=True) if is_wanted][:100],
    )


def _median_us(function: Callable[[Any], object], arguments: list[Any]) -> float:
    seconds = []
    for argument in arguments * 5:
        began = time.perf_counter()
        function(argument)
        seconds.append(time.perf_counter() - began)
    return _median(seconds)


def _median(seconds: Iterable[float]) -> float:
    return statistics.median(seconds) * 1e6


if __name__ == "__main__":
    main()
