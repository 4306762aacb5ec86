"""The runner's numbers as Prometheus metrics, in the glossary's words."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)

from runnersvc.runner import Runner

PREFIX = "pagewire_runner_"


def collected(runner: Runner | None) -> Iterator[Metric]:
    """What there is to tell now; nothing while the model loads. Called on the runner's loop."""
    if runner is None:
        return
    description, totals = runner.description, runner.totals
    about = {
        "boot_id": runner.boot_id,
        "fingerprint": description.model_fingerprint,
        "dtype": description.dtype,
    }
    yield InfoMetricFamily("pagewire_runner", "This life of the KV memory.", about)
    gauges = (
        ("num_pages", "Pages that may be given out.", description.num_pages),
        ("page_size", "Tokens a page.", description.page_size),
        ("live_rows", "Rows that are open.", runner.live_rows),
        ("kept_results", "Results that no plan has acknowledged.", runner.kept_results),
        ("last_executed", "The plan executed last in this life.", runner.last_executed),
    )
    for name, meaning, value in gauges:
        yield GaugeMetricFamily(PREFIX + name, meaning, value)
    counters = (
        ("executed_plans", "Plans executed.", totals.executed_plans),
        ("attaches", "Streams of managers that attached.", totals.attached),
        (
            "resent_results",
            "Results that a manager did not hold when it attached, sent again.",
            totals.resent_results,
        ),
        ("sampled_tokens", "Tokens sampled.", totals.sampled_tokens),
        (
            "executor_waited_seconds",
            "How long the executor stood idle before plans.",
            totals.waited_us / 1e6,
        ),
        (
            "executor_launch_seconds",
            "How long it handed steps to the device.",
            totals.launch_us / 1e6,
        ),
        ("executor_device_seconds", "How long the device executed steps.", totals.device_us / 1e6),
        ("graph_steps", "Steps that ran as a captured CUDA graph.", totals.graph_steps),
        (
            "eager_decode_steps",
            "Decode steps that ran without a CUDA graph: on a CPU, or of too many rows.",
            totals.eager_decode_steps,
        ),
    )
    for name, meaning, total in counters:
        yield CounterMetricFamily(PREFIX + name, meaning, total)
    refused = CounterMetricFamily(
        PREFIX + "refused_plans", "Plans refused, by the rule that they broke.", labels=["reason"]
    )
    for reason, count in totals.refused_by_reason.items():
        refused.add_metric([reason], count)
    yield refused
