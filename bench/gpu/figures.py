"""What is kept of a run: its times as the client saw them, and its steps as the runner did."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from bench.gpu.client import Run
from bench.gpu.trace import StepTrace
from bench.gpu.workloads import Workload
from bench.processes import BenchError


def figures_of(
    workload: Workload, run: Run, trace: Sequence[StepTrace], limit_tok_s: float
) -> dict[str, Any]:
    """The fields of `workloads` in h200.json.

    tok_s        sampled tokens a second, from the first submit to the last finish
    seconds      that time
    prefill_s    device time of steps that compute tokens of a prompt, decoding rows beside them
    decode_s     device time of steps that only decode
    mean_batch   rows a step
    gap_us_p50, gap_us_p99   the device between two steps that only decode, in a row; None on a CPU
    idle_share   of the time from the first launch to the last end, without device time
    launch_us_p50            host time to launch a step that only decodes; any step if none does
    limit_tok_s  `bench.gpu.limits`
    """
    steps = steps_of(run, trace)
    if not steps:
        raise BenchError(f"{workload.name}: the trace has no step of it")
    decodes = [step for step in steps if step.decode_only]
    gaps = steady_gaps_us(steps)
    decode_us = sum(step.device_us for step in decodes)
    device_us = sum(step.device_us for step in steps)
    span_s = steps[-1].ended_s - steps[0].launched_s
    launches = [step.launch_us for step in decodes or steps]
    return {
        "tok_s": round(workload.output_tokens / run.seconds, 1),
        "seconds": round(run.seconds, 4),
        "prefill_s": round((device_us - decode_us) / 1e6, 4),
        "decode_s": round(decode_us / 1e6, 4),
        "mean_batch": round(float(np.mean([step.rows for step in steps])), 1),
        "gap_us_p50": _percentile(gaps, 50),
        "gap_us_p99": _percentile(gaps, 99),
        "idle_share": round(min(max(1 - device_us / 1e6 / span_s, 0.0), 1.0), 4),
        "limit_tok_s": round(limit_tok_s, 1),
        "launch_us_p50": _percentile(launches, 50),
    }


def steps_of(run: Run, trace: Sequence[StepTrace]) -> list[StepTrace]:
    """The plans of a run that computed anything, in order."""
    return [
        step for step in trace if step.rows and run.submitted_s <= step.launched_s <= run.finished_s
    ]


def steady_gaps_us(steps: Sequence[StepTrace]) -> list[int]:
    """Gaps before steps that only decode and follow one that only decodes, where known."""
    return [
        step.gap_us
        for before, step in pairwise(steps)
        if before.decode_only and step.decode_only and step.gap_us is not None
    ]


def _percentile(micros: Sequence[int], percent: float) -> float | None:
    return round(float(np.percentile(micros, percent)), 1) if len(micros) else None
