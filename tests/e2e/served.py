"""`pagewire serve` as a process, on a runner without a model, and the children that it has."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from servicekit.health_check import is_serving
from tests.e2e.system import free_port

MODULES = {"gateway": "gateway", "cachesvc": "cachesvc", "runnersvc": "runnersvc.fake"}
TOKEN_ID = 65
# Answers of that token alone, which take as long as a test wants.
SLOW = ("--step-ms", "20", "--tokens", str(TOKEN_ID))
POLL_S = 0.03


class Served:
    """One such process. Its sockets are in `socket_dir`, its log beside that."""

    def __init__(self, model_dir: Path, socket_dir: Path, *settings: str) -> None:
        self._model_dir = model_dir
        self._settings = settings
        self.socket_dir = socket_dir
        self.address = f"127.0.0.1:{free_port()}"
        self.http_address = f"127.0.0.1:{free_port()}"
        self.admin_address = f"unix:{socket_dir}/admin.sock"
        self.cache_address = f"unix:{socket_dir}/cache.sock"
        self.runner_address = f"unix:{socket_dir}/runner.sock"
        self._log_path = socket_dir.with_name(socket_dir.name + ".log")

    @contextmanager
    def running(self, *runner: str) -> Iterator[subprocess.Popen[str]]:
        """The process, killed with the context if it did not end before; `runner` are arguments of
        the runner, in place of a model's.
        """
        runner = runner or ("--model", str(self._model_dir), *SLOW)
        command = [sys.executable, "-m", "tests.e2e.serve_fake", str(self._model_dir)]
        command += [json.dumps(runner), "--listen", self.address, "--http", self.http_address]
        command += ["--admin", self.admin_address, "--socket-dir", str(self.socket_dir)]
        with (
            self._log_path.open("w") as log,
            subprocess.Popen(
                [*command, *self._settings], stdout=subprocess.PIPE, stderr=log, text=True
            ) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    def pids(self) -> dict[str, int]:
        """Of the children that run, by service."""
        marks = {name: f"-m\0{module}\0".encode() for name, module in MODULES.items()}
        here = f"unix:{self.socket_dir}/".encode()
        return {
            name: int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/cmdline")
            for name, mark in marks.items()
            if mark in (line := _read(path)) and here in line
        }

    def left(self) -> list[str]:
        """In the directory of the sockets. A journal does no harm: it is another runner's."""
        return [name for name in names_in(self.socket_dir) if name != "journal"]

    def until_serving(self) -> None:
        until(lambda: is_serving(self.admin_address))

    def until_restarted(self, name: str, old_pid: int) -> int:
        """The pid of the child of that name once it is another one."""
        until(lambda: self.pids().get(name, old_pid) != old_pid)
        return self.pids()[name]

    def until_gone(self) -> None:
        """Return when no child is left."""
        until(lambda: not self.pids())


def until(holds: Callable[[], bool]) -> None:
    """Asks again until it holds; the suite's own time limit is the bound."""
    while not holds():
        time.sleep(POLL_S)


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended meanwhile
        return b""
