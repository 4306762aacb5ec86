"""The harness of the serving benchmark, with the fake runner in place of a model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.gpu.serve import DEFAULT_JOBS, NAMES, counted_runs, jobs, measure
from bench.gpu.settings import new_parser
from bench.gpu.workloads import alike, with_common_prefix
from bench.processes import BenchError, Services

FAKE = ["tests.bench.traced_fake", "--fingerprint", "tiny", "--max-seq-len", "128"]
CACHE = ["--step-budget-tokens", "128"]
FIELDS = {
    "ready_s",
    "tok_s", "seconds", "prefill_s", "decode_s", "mean_batch", "gap_us_p50", "gap_us_p99",
    "idle_share", "limit_tok_s", "launch_us_p50",
}  # fmt: skip


def test_workloads_are_served_and_measured():
    workloads = [
        alike("four", 4, 40, 20),
        with_common_prefix("shared", 6, 64, 20, 5),
        alike("prompts", 3, 50, 1),
    ]
    figures = measure([*FAKE, "--step-ms", "2"], CACHE, workloads, [100.0, 200.0, 300.0])
    assert list(figures) == ["four", "shared", "prompts"]
    for measured in figures.values():
        assert set(measured) == FIELDS
        assert 0 < measured["prefill_s"] + measured["decode_s"] <= measured["seconds"]
        assert 0 <= measured["idle_share"] < 1
    four = figures["four"]
    assert four["tok_s"] == pytest.approx(80 / four["seconds"], rel=0.01)
    assert four["decode_s"] > 19 * 0.002 * 0.9  # a step each after the first token
    assert four["launch_us_p50"] >= 2000  # the fake executes while it launches
    assert 1 < four["mean_batch"] <= 4
    assert figures["prompts"]["decode_s"] == 0
    assert figures["prompts"]["limit_tok_s"] == 300.0


def test_a_rejected_request_leaves_no_figures():
    with pytest.raises(BenchError, match=r"rejected: .*max_seq_len 128"):
        measure(FAKE, CACHE, [alike("long", 1, 120, 20)], [1.0])


def test_another_number_of_cached_tokens_than_due_leaves_no_figures():
    """Only whole pages of 16 tokens are cached."""
    shared = with_common_prefix("shared", 2, 60, 20, 5)
    with pytest.raises(BenchError, match="shared: 96 tokens were cached, 120 should be"):
        measure(FAKE, CACHE, [shared], [1.0])


def test_a_runner_that_does_not_start_is_named_with_what_it_said():
    with pytest.raises(BenchError, match=r"(?s)runnersvc ended with 2.*page_size|page-size"):
        measure([*FAKE, "--page-size", "0"], CACHE, [alike("one", 1, 5, 1)], [1.0])


async def test_a_process_that_ends_on_the_way_is_named(tmp_path):
    runner = [*FAKE, "--step-ms", "100", "--trace", str(tmp_path / "trace.jsonl")]
    with Services(tmp_path, runner, CACHE) as services:
        running = asyncio.create_task(counted_runs(services, [alike("long", 1, 5, 100)]))
        await services.serving()
        services._processes["runnersvc"].kill()
        with pytest.raises(BenchError, match="runnersvc ended with -9"):
            await running


def args(*given: str):
    parser = new_parser("")
    parser.add_argument("--model", type=Path, action="append")
    parser.add_argument("--only", choices=NAMES)
    return parser.parse_args(given)


def test_the_small_model_serves_every_workload_and_the_large_one_offline():
    assert [(model_dir.name, tuple(names)) for model_dir, names in jobs(args())] == [
        ("qwen3-0.6b", NAMES),
        ("qwen3-14b", ("offline",)),
    ]


def test_a_given_model_serves_every_workload_or_the_one_that_is_wanted():
    assert jobs(args("--model", "here")) == [(Path("here"), list(NAMES))]
    assert jobs(args("--model", "here", "--only", "b8")) == [(Path("here"), ["b8"])]
    assert jobs(args("--only", "b8")) == [(DEFAULT_JOBS[0][0], ["b8"])]
