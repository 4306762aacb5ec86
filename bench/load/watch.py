"""What the processes of a run take while it lasts: memory, CPU, pages, tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import grpc
from pagewire.v1 import cache_pb2, cache_pb2_grpc
from prometheus_client import ProcessCollector
from prometheus_client.parser import text_string_to_metric_families

SCRAPE_TIMEOUT_S = 10.0
MS_PER_TICK = 10  # of /proc/stat


class Process(NamedTuple):
    """Of one process, since it started."""

    cpu_s: float
    rss_bytes: float


class Sample(NamedTuple):
    """One moment of a run."""

    at_ms: float  # the wall clock, since 1970
    processes: dict[str, Process]
    machine_cpu_s: float  # what all processes of the machine took, since it started
    used_pages: int  # those of running requests
    tasks: dict[str, float]  # on the event loops


async def watched(
    pids: Mapping[str, int],
    cache_address: str,
    metrics: Mapping[str, str],
    samples: list[Sample],
    every_s: float,
) -> None:
    """Add samples until cancelled. `metrics` are the URLs of metrics, by process."""
    collectors = {
        name: ProcessCollector(pid=lambda pid=pid: pid, registry=None) for name, pid in pids.items()
    }
    async with grpc.aio.insecure_channel(cache_address) as channel:
        stub = cache_pb2_grpc.CacheServiceStub(channel)
        while True:
            stats = await stub.GetStats(cache_pb2.GetStatsRequest())
            tasks = {name: await asyncio.to_thread(_tasks, url) for name, url in metrics.items()}
            samples.append(
                Sample(
                    at_ms=time.time() * 1e3,
                    processes={name: _process(each) for name, each in collectors.items()},
                    machine_cpu_s=_machine_cpu_s(),
                    used_pages=stats.locked_pages + stats.private_pages,
                    tasks=tasks,
                )
            )
            await asyncio.sleep(every_s)


def _process(collector: ProcessCollector) -> Process:
    numbers = {each.name: each.samples[0].value for each in collector.collect() if each.samples}
    return Process(
        numbers.get("process_cpu_seconds", 0.0), numbers.get("process_resident_memory_bytes", 0.0)
    )


def _machine_cpu_s() -> float:
    user, nice, system, _idle, _iowait, irq, softirq, steal = (
        int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) * MS_PER_TICK / 1e3


def _tasks(url: str) -> float:
    with urlopen(url, timeout=SCRAPE_TIMEOUT_S) as response:
        families = text_string_to_metric_families(response.read().decode())
        return next(each.samples[0].value for each in families if each.name == "pagewire_tasks")
