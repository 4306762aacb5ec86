from __future__ import annotations

import pytest

from bench.gpu.client import Run
from bench.gpu.figures import figures_of, steady_gaps_us, steps_of
from bench.gpu.trace import StepTrace, read_trace, write_trace
from bench.gpu.workloads import alike
from bench.processes import BenchError

RUN = Run(submitted_s=10.0, finished_s=12.0, cached_tokens=0)


def step(
    launched_s: float, *, rows: int = 2, decode_only: bool = True, gap_us: int | None = 7
) -> StepTrace:
    return StepTrace(launched_s, 50, rows, rows, decode_only, 400_000, gap_us, launched_s + 0.5)


PROMPTS = step(10.0, decode_only=False, gap_us=9_000_000)
TRACE = [step(1.0), PROMPTS, step(10.5, gap_us=300), step(11.0, gap_us=8), step(11.5, gap_us=10)]


def test_figures_come_from_the_client_the_steps_and_the_limit():
    figures = figures_of(alike("tiny", 2, 5, 4), RUN, TRACE, limit_tok_s=16.0)
    assert figures == {
        "tok_s": 4.0,  # 2 requests x 4 tokens in 2 s
        "seconds": 2.0,
        "prefill_s": 0.4,
        "decode_s": 1.2,
        "mean_batch": 2.0,
        "gap_us_p50": 9.0,
        "gap_us_p99": 10.0,
        "idle_share": 0.2,  # 1.6 s of the 2 s from 10.0 to 12.0
        "limit_tok_s": 16.0,
        "launch_us_p50": 50.0,
    }


def test_steps_of_other_runs_and_plans_without_rows_are_left_out():
    closes = step(11.9, rows=0, decode_only=False)
    assert steps_of(RUN, [*TRACE, closes, step(12.1)]) == TRACE[1:]


def test_only_gaps_between_two_decode_steps_count():
    decodes = [step(0, gap_us=gap_us) for gap_us in (1, 2, None, 4)]
    assert steady_gaps_us([PROMPTS, *decodes, PROMPTS, step(0, gap_us=5)]) == [2, 4]


def test_a_run_without_gaps_has_none_to_tell():
    figures = figures_of(alike("tiny", 1, 5, 1), RUN, [PROMPTS], limit_tok_s=1.0)
    assert figures["gap_us_p50"] is figures["gap_us_p99"] is None


def test_a_run_that_left_no_trace_has_no_figures():
    with pytest.raises(BenchError, match="tiny: the trace has no step"):
        figures_of(alike("tiny", 1, 5, 1), RUN, TRACE[:1], limit_tok_s=1.0)


def test_a_trace_is_read_as_it_was_written(tmp_path):
    write_trace(tmp_path / "trace.jsonl", TRACE)
    assert read_trace(tmp_path / "trace.jsonl") == TRACE
