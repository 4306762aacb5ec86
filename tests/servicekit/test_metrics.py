"""The Prometheus endpoint: numbers of the moment of the scrape, and how many tasks there are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from urllib.error import URLError

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric

from servicekit.errors import SetupError
from servicekit.metrics import metrics_endpoint
from tests.servicekit.scrape import free_address, scraped


class Pool:
    def __init__(self) -> None:
        self.free_pages = 8
        self.read_on: list[int] = []

    def collected(self) -> Iterator[Metric]:
        self.read_on.append(threading.get_ident())
        yield GaugeMetricFamily("free_pages", "Pages.", self.free_pages)


async def test_a_scrape_reads_what_is_true_then_on_the_loop_of_the_owner() -> None:
    pool, address = Pool(), free_address()
    async with metrics_endpoint(address, pool.collected):
        assert pool.read_on == [], "nobody asked"
        assert (await scraped(address))["free_pages"] == 8
        pool.free_pages = 3
        assert (await scraped(address))["free_pages"] == 3
    assert set(pool.read_on) == {threading.get_ident()}


async def test_tasks_of_the_loop_are_counted() -> None:
    pool, address, forever = Pool(), free_address(), asyncio.Event()
    async with metrics_endpoint(address, pool.collected):
        before = (await scraped(address))["pagewire_tasks"]
        waiting = [asyncio.create_task(forever.wait()) for _ in range(3)]
        assert (await scraped(address))["pagewire_tasks"] == before + 3
        forever.set()
        await asyncio.gather(*waiting)
        assert (await scraped(address))["pagewire_tasks"] == before


async def test_the_address_is_free_again_when_the_context_ended() -> None:
    pool, address = Pool(), free_address()
    for _ in range(2):
        async with metrics_endpoint(address, pool.collected):
            assert await scraped(address)
    with pytest.raises(URLError):
        await scraped(address)


async def test_an_address_that_is_taken_is_named() -> None:
    pool, address = Pool(), free_address()
    async with metrics_endpoint(address, pool.collected):
        with pytest.raises(SetupError, match=f"{address} of --metrics cannot be bound: Address"):
            async with metrics_endpoint(address, pool.collected):
                pass


@pytest.mark.parametrize("address", ["9100", ":9100", "localhost", "localhost:http", "h:65536"])
async def test_what_is_no_host_and_port_is_refused(address: str) -> None:
    with pytest.raises(SetupError, match=f"--metrics is {address}; it must be HOST:PORT"):
        async with metrics_endpoint(address, Pool().collected):
            pass


async def test_without_an_address_nothing_listens() -> None:
    before = threading.active_count()
    async with metrics_endpoint(None, Pool().collected):
        assert threading.active_count() == before


async def test_a_scrape_that_fails_leaves_the_endpoint_as_it_was() -> None:
    pool, address = Pool(), free_address()

    def broken() -> Iterator[Metric]:
        if pool.free_pages == 0:
            raise ValueError("no picture")
        return pool.collected()

    async with metrics_endpoint(address, broken):
        pool.free_pages = 0
        with pytest.raises(OSError, match="closed connection"):
            await scraped(address)
        pool.free_pages = 1
        assert (await asyncio.wait_for(scraped(address), 10))["free_pages"] == 1
