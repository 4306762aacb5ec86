"""cachesvc, a runner and, where asked for, a gateway as real processes, on sockets of their own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from servicekit.health_check import is_serving

START_TIMEOUT_S = 300.0  # a large model loads, kernels compile, graphs are captured
STOP_TIMEOUT_S = 30.0
LOG_LINES = 20  # of a process that ended too early


class BenchError(Exception):
    """The run does not count; the text says why."""


class Services:
    """Started when it is entered. All processes are gone when it is left, and soon after when this
    process is killed: they hold the reading end of a pipe of ours, and stop when it closes.

    `runner` is the module of the runner process and its settings but for --listen, `cache` are
    settings of cachesvc. `gateway` are those of a gateway but for --cache, whose public address is
    `front`; without it there is none.
    """

    def __init__(
        self,
        run_dir: Path,
        runner: Sequence[str],
        cache: Sequence[str],
        front: str | None = None,
        gateway: Sequence[str] = (),
    ) -> None:
        self._run_dir = run_dir
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ready_s = 0.0  # from the start of the processes until they served
        self.cache_address = f"unix:{run_dir}/cache.sock"
        runner_address = f"unix:{run_dir}/runner.sock"
        self._commands = {
            "runnersvc": [*runner, "--listen", runner_address],
            "cachesvc": [
                "cachesvc", "--listen", self.cache_address, "--runner", runner_address,
                "--journal", str(run_dir / "journal"), *cache,
            ],
        }  # fmt: skip
        self._front = front or self.cache_address
        if front is not None:
            cache_address = ["--cache", self.cache_address]
            self._commands["gateway"] = ["gateway", "--listen", front, *cache_address, *gateway]

    def __enter__(self) -> Services:
        self._began_s = time.monotonic()
        self._stop_reader, self._stop_writer = os.pipe()
        try:
            for name, command in self._commands.items():
                self._start(name, command)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _start(self, name: str, command: list[str]) -> None:
        arguments = ["--log-level", "warning", "--parent-fd", str(self._stop_reader)]
        with self._log(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", *command, *arguments],
                stdin=subprocess.DEVNULL,
                stderr=log,
                pass_fds=[self._stop_reader],
            )

    async def serving(self) -> None:
        """Return when what stands in front serves, which is when a runner is attached. Errors:
        BenchError.
        """
        deadline_s = self._began_s + START_TIMEOUT_S
        while not await asyncio.to_thread(is_serving, self._front):
            self.check_alive()
            if time.monotonic() > deadline_s:
                raise BenchError(f"the services do not serve; {self._said('runnersvc')}")
            await asyncio.sleep(0.05)
        self.ready_s = round(time.monotonic() - self._began_s, 2)

    async def watch(self) -> None:
        """Raises BenchError when a process ends; returns never."""
        while True:
            self.check_alive()
            await asyncio.sleep(0.5)

    def check_alive(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise BenchError(f"{name} ended with {process.returncode}; {self._said(name)}")

    def pid_of(self, name: str) -> int:
        return self._processes[name].pid

    def stop(self) -> None:
        """End all, front to back. Errors: BenchError unless all exit with 0."""
        for name in reversed(self._commands):
            self._processes[name].terminate()
            code = self._processes[name].wait(STOP_TIMEOUT_S)
            if code != 0:
                raise BenchError(f"{name} ended with {code}; {self._said(name)}")

    def _end(self) -> None:
        os.close(self._stop_writer)
        os.close(self._stop_reader)
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def _log(self, name: str) -> Path:
        return self._run_dir / f"{name}.log"

    def _said(self, name: str) -> str:
        lines = self._log(name).read_text().splitlines()[-LOG_LINES:]
        return "its log ends with\n" + "\n".join(lines)
