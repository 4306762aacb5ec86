"""What `pagewire serve` refuses before it starts anything, and when it starts what again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.child import Child
from gateway.restarts import GIVE_UP_AFTER, LONG_LIFE_S, Restarts, keep_up
from gateway.serve_config import ServeConfig
from gateway.supervisor import Supervisor
from gateway.tcp_listener import listener
from servicekit.errors import FatalError, SetupError
from tests.cachesvc.rpc import socket_address


@pytest.mark.parametrize("options", [("listen", "http"), ("listen", "admin"), ("http", "admin")])
async def test_one_address_for_two_things_is_refused_before_a_service_starts(
    options: tuple[str, str],
) -> None:
    """Each address was tried and given up before the next: a runner loaded its model until the
    gateway, started with it, found that its own second address was its first.
    """
    first, second = (listener("127.0.0.1:0", "--listen") for _ in range(2))
    with first, second:
        ports = [held.getsockname()[1] for held in (first, second)]
    one, other = (f"127.0.0.1:{port}" for port in ports)
    addresses = {"listen": other, "http": "off", "admin": "off"} | dict.fromkeys(options, one)
    supervisor = Supervisor(Path("model"), ServeConfig(**addresses))
    try:
        with pytest.raises(SetupError, match=f"address {one} of --{options[1]} .*in use"):
            await supervisor.start()
    finally:
        await supervisor.stop()


async def test_each_life_of_the_manager_records_into_a_file_of_its_own() -> None:
    """The second one was refused the file of the first."""
    config = ServeConfig(socket_dir="/nowhere", record="plans")
    supervisor = Supervisor(Path("model"), config)
    await supervisor.stop()
    first, second = (supervisor._arguments("cachesvc", life) for life in (1, 2))
    assert first[first.index("--record") + 1] == "plans"
    assert second == [*first, "--record", "plans.2"]


@pytest.mark.parametrize("left", [["journal", "journal.new", "journal.lock"], ["journal.new"]])
async def test_nothing_of_a_journal_stays_behind(tmp_path: Path, left: list[str]) -> None:
    """Of a manager that was killed while it wrote it anew: that has ids of prompts in it, too."""
    supervisor = Supervisor(Path("model"), ServeConfig(socket_dir=str(tmp_path)))
    for name in left:
        (tmp_path / name).touch()
    await supervisor.stop()
    assert await asyncio.to_thread(os.listdir, tmp_path) == []


class TestRestarts:
    def test_waits_double_up_to_five_seconds_and_never_end_for_one_that_serves(self) -> None:
        restarts = Restarts()
        waits = [
            restarts.wait_s_after(1, served=True, could_serve=True)
            for _ in range(GIVE_UP_AFTER + 4)
        ]
        assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]

    def test_after_a_long_life_waits_begin_anew(self) -> None:
        restarts = Restarts()
        lives_s = [1, 1, LONG_LIFE_S, 1]
        waits = [restarts.wait_s_after(life_s, served=True, could_serve=True) for life_s in lives_s]
        assert waits == [0.1, 0.2, 0.1, 0.2]

    def test_whoever_never_serves_is_given_up_however_long_it_lives(self) -> None:
        restarts = Restarts()
        waits = [
            restarts.wait_s_after(LONG_LIFE_S, served=False, could_serve=True)
            for _ in range(GIVE_UP_AFTER)
        ]
        assert waits == [0.1] * (GIVE_UP_AFTER - 1) + [None]

    def test_a_life_that_served_or_could_not_serve_does_not_count(self) -> None:
        restarts = Restarts()
        for served, could_serve in [(False, True), (False, False)] * (GIVE_UP_AFTER - 1):
            assert restarts.wait_s_after(1, served=served, could_serve=could_serve)
        assert restarts.wait_s_after(1, served=True, could_serve=True)
        assert restarts.wait_s_after(1, served=False, could_serve=True)


@pytest.fixture
async def parent_fd() -> AsyncIterator[int]:
    """Of a parent that lives as long as the test."""
    parent_fd, own_fd = os.pipe()
    yield parent_fd
    os.close(parent_fd)
    os.close(own_fd)


async def test_a_child_that_cannot_start_is_given_up_by_its_name(parent_fd: int) -> None:
    child = Child("cachesvc", "no_such_module", lambda life: [], "unix:/nowhere/cache.sock")
    await child.start(parent_fd)
    with (
        capture_logs() as logs,
        pytest.raises(FatalError, match=r"cachesvc ended 5 times .* the last time: exit code 1"),
    ):
        await keep_up(child, parent_fd, could_serve=lambda: True)
    assert [(line["child"], line["wait_s"]) for line in logs] == [
        ("cachesvc", wait_s) for wait_s in (0.1, 0.2, 0.4, 0.8)
    ]


async def test_a_child_that_served_and_hangs_is_killed_and_started_again(
    parent_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner that stands still; its load, before it serves, may take as long as it likes."""
    for name, value in {"CHECK_S": 0.01, "CHECK_TIMEOUT_S": 0.2, "SILENT_CHECKS": 2}.items():
        monkeypatch.setattr(f"gateway.child.{name}", value)
    with socket_address() as address:
        arguments = ["--listen", address, "--fingerprint", "any"]
        child = Child("runnersvc", "runnersvc.fake", lambda life: arguments, address)
        await child.start(parent_fd)
        keeping = asyncio.create_task(keep_up(child, parent_fd, could_serve=lambda: True))
        try:
            await until(lambda: child.is_running and child.served)
            with capture_logs() as logs:
                child._signal(signal.SIGSTOP)
                await until(lambda: len(logs) == 2)
            assert [line["event"] for line in logs] == [
                "child hangs, killing it",
                "child ended, starting it again",
            ]
            await until(lambda: child.is_running and child.served)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            child.kill()
            await child.ended()


async def until(holds: Callable[[], bool]) -> None:
    while True:
        if holds():
            return
        await asyncio.sleep(0.01)
