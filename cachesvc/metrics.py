"""The manager's numbers as Prometheus metrics: those of GetStats, under the glossary's words."""

from __future__ import annotations

from collections.abc import Iterator

from pagewire.v1 import cache_pb2 as pb
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)

PREFIX = "pagewire_cache_"


def collected(stats: pb.GetStatsResponse) -> Iterator[Metric]:
    """Every number of one picture."""
    lives = {"manager_id": stats.manager_id, "boot_id": stats.boot_id}
    yield InfoMetricFamily("pagewire_cache", "This manager's life, and its runner's.", lives)
    pages = GaugeMetricFamily(PREFIX + "pages", "Pages by where they belong.", labels=["state"])
    states = (
        ("free", stats.free_pages),
        ("evictable", stats.evictable_pages),
        ("locked", stats.locked_pages),
        ("private", stats.private_pages),
        ("quarantined", stats.quarantined_pages),
    )
    for state, count in states:
        pages.add_metric([state], count)
    yield pages
    for name, meaning, value in _gauges(stats):
        yield GaugeMetricFamily(PREFIX + name, meaning, value)
    ended = CounterMetricFamily(
        PREFIX + "ended_requests", "Requests that ended, by how.", labels=["outcome"]
    )
    outcomes = (
        ("finished", stats.finished_total),
        ("cancelled", stats.cancelled_total),
        ("failed", stats.failed_total),
        ("expired", stats.expired_total),
        ("rejected", stats.rejected_total),
    )
    for outcome, count in outcomes:
        ended.add_metric([outcome], count)
    yield ended
    for name, meaning, total in _counters(stats):
        yield CounterMetricFamily(PREFIX + name, meaning, total)


def _gauges(stats: pb.GetStatsResponse) -> tuple[tuple[str, str, float], ...]:
    return (
        ("num_pages", "Pages of the pool.", stats.num_pages),
        ("page_size", "Tokens a page.", stats.page_size),
        ("max_used_pages", "Most pages of running requests at once.", stats.max_used_pages),
        ("running_requests", "Requests that hold a row.", stats.running_requests),
        ("waiting_requests", "Requests that hold no row yet.", stats.waiting_requests),
        ("attached", "1 while a runner is attached.", stats.attached),
        ("runner_silent", "1 while its answers are overdue.", stats.runner_silent),
        ("last_plan_id", "The last plan sent.", stats.last_plan_id),
        ("last_result_plan_id", "The last plan whose result came.", stats.last_result_plan_id),
    )


def _counters(stats: pb.GetStatsResponse) -> tuple[tuple[str, str, float], ...]:
    return (
        ("attaches", "Attaches of a runner.", stats.attached_total),
        ("prompt_tokens", "Prompt tokens computed, again or not.", stats.prompt_tokens_total),
        ("sampled_tokens", "Sampled tokens delivered.", stats.sampled_tokens_total),
        ("cached_tokens", "Prompt tokens found in the cache.", stats.cached_tokens_total),
        (
            "admitted_prompt_tokens",
            "Prompt tokens of first admissions, cached or not.",
            stats.admitted_prompt_tokens_total,
        ),
        (
            "resubmitted_requests",
            "Requests that came again from a gateway whose session was lost.",
            stats.resubmitted_total,
        ),
        ("preempted_requests", "Preemptions.", stats.preempted_total),
        ("evicted_pages", "Pages evicted.", stats.evicted_pages_total),
        ("refused_plans", "Plans that the runner refused.", stats.refused_total),
        ("poisoned_requests", "Requests failed as runners died of them.", stats.poisoned_total),
        ("resent_plans", "Plans sent again after a lost stream.", stats.resent_plans_total),
        (
            "resent_results",
            "Results that came again after a lost stream.",
            stats.resent_results_total,
        ),
        (
            "adopted_pages",
            "Cached pages taken over from an earlier manager.",
            stats.adopted_pages_total,
        ),
        (
            "recomputed_tokens",
            "Tokens computed for requests that were preempted or submitted again.",
            stats.recomputed_tokens_total,
        ),
        ("healed", "Violations of the page equation, healed.", stats.healed_total),
        (
            "executor_waited_seconds",
            "How long the executor waited for plans while work was there.",
            stats.executor_waited_us_total / 1e6,
        ),
        (
            "executor_device_seconds",
            "How long the executor executed plans.",
            stats.executor_device_us_total / 1e6,
        ),
    )
