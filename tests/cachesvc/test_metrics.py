"""Every number of GetStats is a metric, under a name that says what it counts."""

from __future__ import annotations

from pagewire.v1 import cache_pb2 as pb
from prometheus_client import CollectorRegistry

from cachesvc.metrics import collected


def told(stats: pb.GetStatsResponse) -> dict[str, float]:
    return {
        sample.name.removeprefix("pagewire_cache_")
        + "".join(f"/{value}" for value in sample.labels.values()): sample.value
        for family in collected(stats)
        for sample in family.samples
        if not sample.name.endswith("_info")
    }


def test_no_number_of_get_stats_is_left_out() -> None:
    numbers = [
        field.name
        for field in pb.GetStatsResponse.DESCRIPTOR.fields
        if field.type in (field.TYPE_INT32, field.TYPE_INT64)
    ]
    stats = pb.GetStatsResponse(
        attached=True,
        runner_silent=True,
        **{name: 1_000_000 * at for at, name in enumerate(numbers, start=2)},
    )
    expected = sorted(
        value / 1e6 if name.endswith("_us_total") else value
        for name, value in ((name, getattr(stats, name)) for name in numbers)
    )
    assert sorted(told(stats).values()) == [1, 1, *expected]


def test_names_are_those_of_the_glossary() -> None:
    stats = pb.GetStatsResponse(
        num_pages=9,
        free_pages=1,
        evictable_pages=2,
        locked_pages=3,
        private_pages=3,
        waiting_requests=5,
        cancelled_total=7,
        executor_device_us_total=1_500_000,
    )
    numbers = told(stats)
    assert {name: numbers[f"pages/{name}"] for name in ("free", "evictable", "locked")} == {
        "free": 1,
        "evictable": 2,
        "locked": 3,
    }
    assert numbers["pages/private"] + 6 == numbers["num_pages"] == 9
    assert numbers["pages/quarantined"] == numbers["attached"] == 0
    assert numbers["waiting_requests"] == 5
    assert numbers["ended_requests_total/cancelled"] == 7
    assert numbers["executor_device_seconds_total"] == 1.5


def test_its_names_are_distinct() -> None:
    class Once:
        def collect(self):
            return collected(pb.GetStatsResponse())

    CollectorRegistry(auto_describe=True).register(Once())  # ValueError for a name twice
