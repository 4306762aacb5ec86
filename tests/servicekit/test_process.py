"""The `__main__` of a service: it runs, or says in one sentence why it cannot."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import structlog

from servicekit.config import setting
from servicekit.errors import SetupError
from servicekit.process import STOP_SIGNALS, require_at_least, run_service


@dataclass(frozen=True)
class Settings:
    num_pages: int = setting("pages", 8)
    log_level: str = setting("level", "info")
    parent_fd: int | None = setting("pipe", None)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """A process's logs and signals outlive it nowhere but here."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, taken in before.items():
        signal.signal(number, taken)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def run(monkeypatch: pytest.MonkeyPatch, *argv: str, error: Exception | None = None) -> list[int]:
    """The pages that the service was told of."""
    told: list[int] = []

    async def serve(config: Settings) -> None:
        told.append(config.num_pages)
        if error is not None:
            raise error

    monkeypatch.setattr("sys.argv", ["pagesvc", *argv])
    run_service("pagesvc", "Pages.", Settings, serve)
    return told


def sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *argv: str,
    error: Exception | None = None,
) -> str:
    """What a service that cannot start writes."""
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, *argv, error=error)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_it_serves_with_the_settings_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "--num-pages", "3") == [3]


def test_what_keeps_it_from_serving_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = sentence(monkeypatch, capsys, error=SetupError("the pool is too small"))
    assert text == "pagesvc: the pool is too small\n"


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_before_it_takes_signals_itself_ends_it_well(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """It was KeyboardInterrupt with its traceback, and for process 1 of a container nothing."""

    async def serve(config: Settings) -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr("sys.argv", ["pagesvc"])
    with pytest.raises(SystemExit) as caught:
        run_service("pagesvc", "Pages.", Settings, serve)
    assert caught.value.code == 0


def test_the_end_of_the_parent_before_it_takes_signals_itself_ends_it_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A runner whose parent was killed went on to import torch, however long that took."""
    monkeypatch.setattr("servicekit.process.PARENT_GONE_END_S", 3600.0)  # it is this process
    parent_fd, own_fd = os.pipe()

    async def serve(config: Settings) -> None:
        os.close(own_fd)
        await asyncio.Event().wait()

    monkeypatch.setattr("sys.argv", ["pagesvc", "--parent-fd", str(parent_fd)])
    with pytest.raises(SystemExit) as caught:
        run_service("pagesvc", "Pages.", Settings, serve)
    assert caught.value.code == 0
    os.close(parent_fd)


HANGS = """
import signal, time
from servicekit import process
from tests.servicekit.test_process import Settings

process.PARENT_GONE_END_S = 0.05

async def serve(config):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("hangs", flush=True)
    time.sleep(3600)

process.run_service("pagesvc", "Pages.", Settings, serve)
"""


def test_an_event_loop_that_hangs_does_not_outlive_the_parent() -> None:
    parent_fd, own_fd = os.pipe()
    command = [sys.executable, "-c", HANGS, "--parent-fd", str(parent_fd)]
    with subprocess.Popen(command, pass_fds=[parent_fd], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"hangs\n"
        os.close(own_fd)
        assert process.wait() == -signal.SIGKILL
    os.close(parent_fd)


def test_an_unknown_setting_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = sentence(monkeypatch, capsys, "--num-page", "3")
    assert text == "pagesvc: unknown setting --num-page: did you mean --num-pages?\n"


def test_an_unknown_log_level_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was a KeyError with its traceback."""
    text = sentence(monkeypatch, capsys, "--log-level", "loud")
    assert text.startswith("pagesvc: --log-level is loud; it must be one of ")
    assert text.count("\n") == 1


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_every_log_level_of_the_help_is_known(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    assert run(monkeypatch, "--log-level", level) == [8]


@pytest.mark.parametrize("value", [0, -3, float("nan")])
def test_a_value_below_its_bound_is_refused_by_name(value: float) -> None:
    with pytest.raises(SetupError, match=r"--kv-tokens is .*; it must be at least 1"):
        require_at_least("kv_tokens", value, 1)
    require_at_least("kv_tokens", 1, 1)
