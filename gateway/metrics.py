"""The gateway's numbers as Prometheus metrics, under the glossary's words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gateway.totals import Times, Totals

PREFIX = "pagewire_gateway_"


def collected(totals: Totals, *, serving: bool) -> Iterator[Metric]:
    """Every number of one picture."""
    requests = CounterMetricFamily(
        PREFIX + "requests",
        "Requests that ended, by where they came in and the code that they ended with.",
        labels=["surface", "code"],
    )
    for (surface, code), count in sorted(totals.requests.items()):
        requests.add_metric([surface, code], count)
    yield requests
    yield GaugeMetricFamily(PREFIX + "serving", "1 while requests are taken.", int(serving))
    yield GaugeMetricFamily(
        PREFIX + "live_answers", "Answers that are under way.", totals.live_answers
    )
    for name, meaning, total in (
        ("prompt_tokens", "Prompt tokens of requests that were taken.", totals.prompt_tokens),
        ("cached_tokens", "Of them, those found in the cache.", totals.cached_tokens),
        ("completion_tokens", "Tokens answered.", totals.completion_tokens),
    ):
        yield CounterMetricFamily(PREFIX + name, meaning, total)
    yield _histogram(
        "first_token_seconds", "From a request to its first token.", totals.first_token
    )
    yield _histogram("next_token_seconds", "From a token to the next one.", totals.next_token)


def _histogram(name: str, meaning: str, times: Times) -> Metric:
    ends = [*map(str, times.bounds_s), "+Inf"]
    buckets = list(zip(ends, accumulate(times.counts), strict=True))
    return HistogramMetricFamily(PREFIX + name, meaning, buckets=buckets, sum_value=times.sum_s)


class Picture(Collector):
    """Metrics that were collected already, for the library to write out."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
