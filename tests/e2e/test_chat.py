"""`pagewire chat` as a process, talking to a gateway that is killed in the middle of an answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.system import System, running

QUESTION = "Tell me of the sea."
SETTINGS = ("--max-tokens", "200", "--temperature", "1.0", "--seed", "5")


@contextmanager
def chat(system: System, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The shell at the end of two pipes, its notes on a third."""
    command = [sys.executable, "-m", "gateway.cli", "chat", "--address", system.address]
    with subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as shell:
        try:
            yield shell
        finally:
            shell.kill()


def ask(shell: subprocess.Popen[bytes], message: str) -> None:
    assert shell.stdin is not None
    shell.stdin.write(f"{message}\n".encode())


def end(shell: subprocess.Popen[bytes]) -> tuple[bytes, str]:
    """The rest of what it writes, once nothing more is asked."""
    out, notes = shell.communicate(timeout=60)
    assert shell.returncode == 0, notes
    return out, notes.decode()


@pytest.fixture(scope="module")
def own(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running(System(tiny_dir, tmp_path_factory.mktemp("chat"), num_threads=1)) as system:
        yield system


def test_an_answer_goes_on_after_the_gateway_was_killed_and_nothing_is_lost(own: System) -> None:
    """The tiny model answers in random bytes: no text repeats, and characters span tokens."""
    with chat(own, *SETTINGS) as shell:
        ask(shell, QUESTION)
        undisturbed, _ = end(shell)

    with chat(own, *SETTINGS) as shell:
        assert shell.stdout is not None
        ask(shell, QUESTION)
        begun = read_some(shell.stdout.fileno(), 20)
        own.kill("gateway")
        own.start_one("gateway")
        rest, notes = end(shell)
    assert (begun + rest).decode() == undisturbed.decode()
    assert "trying again, Ctrl-C gives up" in notes
    assert " 200 out, " in notes


def test_ctrl_c_stops_the_answer_and_the_next_question_is_answered(own: System) -> None:
    with chat(own, *SETTINGS) as shell:
        assert shell.stdout is not None
        ask(shell, QUESTION)
        read_some(shell.stdout.fileno(), 1)
        os.kill(shell.pid, signal.SIGINT)
        ask(shell, "/reset")
        ask(shell, "And now?")
        _, notes = end(shell)
    assert "stopped" in notes
    assert "a new conversation" in notes
    assert " tokens in, " in notes


def read_some(fd: int, num_bytes: int) -> bytes:
    text = b""
    while len(text) < num_bytes:
        text += os.read(fd, num_bytes - len(text))
    return text
