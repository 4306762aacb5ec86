"""Asks the manager for its counts all the time, and holds the page equation in each answer."""

from __future__ import annotations

import asyncio
import time

import grpc
from pagewire.v1 import cache_pb2, cache_pb2_grpc

from servicekit.client import stream_channel
from tests.e2e.system import pages_of

PERIOD_S = 0.02
TIMEOUT_S = 1.0
COUNTS_OF_TROUBLE = ("refused_total", "healed_total", "quarantined_pages")


class StatsWatch:
    """`stats` is the last answer, and came at `at_s`; None before the first."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.stats: cache_pb2.GetStatsResponse | None = None
        self.at_s = 0.0
        self.answers = 0
        self.leaked_pages = 0  # the most that an answer did not account for
        self.troubles: dict[str, int] = {}  # the most of each, in the life of a manager

    async def run(self) -> None:
        """Until cancelled."""
        async with stream_channel(self._address) as channel:
            stub = cache_pb2_grpc.CacheServiceStub(channel)
            while True:
                try:
                    asked = cache_pb2.GetStatsRequest()
                    self._take(await stub.GetStats(asked, timeout=TIMEOUT_S))
                except grpc.aio.AioRpcError:
                    self.stats = None  # dead, stopped, or not there yet
                await asyncio.sleep(PERIOD_S)

    def _take(self, stats: cache_pb2.GetStatsResponse) -> None:
        self.stats, self.at_s = stats, time.time()
        self.answers += 1
        missing = abs(pages_of(stats) - stats.num_pages)
        self.leaked_pages = max(self.leaked_pages, missing)
        for name in COUNTS_OF_TROUBLE:
            if count := getattr(stats, name):
                self.troubles[name] = max(self.troubles.get(name, 0), count)

    @property
    def plans_in_flight(self) -> int:
        stats = self.stats
        return 0 if stats is None else stats.last_plan_id - stats.last_result_plan_id
