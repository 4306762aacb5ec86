"""The three services as processes of one parent: started together, stopped front to back.

A runner that dies once all is ready is started again: the manager kept its requests. No process
outlives the parent: each holds the reading end of a pipe whose writing end is the parent's alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import structlog

from gateway.api_keys import read_api_keys
from gateway.serve_config import (
    CACHE_NAMES,
    CACHE_SETTINGS,
    GATEWAY_SETTINGS,
    NO_ADMIN,
    NO_HTTP,
    RUNNER_NAMES,
    RUNNER_SETTINGS,
    ServeConfig,
)
from gateway.tcp_listener import listener
from servicekit.errors import FatalError, SetupError
from servicekit.health_check import is_serving
from servicekit.tls import Tls

log = structlog.get_logger()

POLL_S = 0.1
DEFAULT_GRACE_S = 30.0
KILL_AFTER_S = 10.0  # past the grace period
RUNNER_RESTARTS = 5  # then it is not the runner's accident any more
RESTART_WAIT_S = 1.0


class Supervisor:
    """Owns the processes and the directory of their sockets, from `start()` to `stop()`."""

    def __init__(self, model_dir: Path, config: ServeConfig) -> None:
        self._config = config
        self._own_dir = config.socket_dir is None
        self.socket_dir = Path(config.socket_dir or tempfile.mkdtemp(prefix="pagewire-"))
        self._commands = self._command_lines(["--model", str(model_dir)])
        self._processes: dict[str, asyncio.subprocess.Process] = {}  # front to back
        self._parent_fd, self._own_fd = os.pipe()

    @property
    def cache_address(self) -> str:
        return f"unix:{self.socket_dir}/cache.sock"

    @property
    def runner_address(self) -> str:
        return f"unix:{self.socket_dir}/runner.sock"

    def _command_lines(self, model: list[str]) -> dict[str, list[str]]:
        """What to start, front to back."""
        config = self._config
        gateway = ["--listen", config.listen, "--cache", self.cache_address, *model]
        if config.http != NO_HTTP:
            gateway += ["--http", config.http]
        if config.admin != NO_ADMIN:
            gateway += ["--admin", config.admin]
        cachesvc = ["--listen", self.cache_address, "--runner", self.runner_address]
        runnersvc = ["--listen", self.runner_address, *model]
        return {
            "gateway": gateway + config.arguments(GATEWAY_SETTINGS, {}),
            "cachesvc": cachesvc + config.arguments(CACHE_SETTINGS, CACHE_NAMES),
            "runnersvc": runnersvc + config.arguments(RUNNER_SETTINGS, RUNNER_NAMES),
        }

    async def start(self) -> None:
        """Start all three. Errors: SetupError when an address is taken or given twice, or keys or
        certificates cannot be read, before any is.
        """
        config = self._config
        Tls.read(config.tls_cert, config.tls_key, config.tls_client_ca)
        if config.api_key_file is not None:
            read_api_keys(config.api_key_file)
        with contextlib.ExitStack() as held:  # all at once, so that none is given twice
            held.enter_context(listener(config.listen, "--listen"))
            if config.http != NO_HTTP:
                option = f"--http (another, or {NO_HTTP}, will do)"
                held.enter_context(listener(config.http, option))
            if config.admin != NO_ADMIN and not config.admin.startswith("unix:"):
                option = f"--admin (another, or {NO_ADMIN}, will do)"
                held.enter_context(listener(config.admin, option))
        for name in self._commands:
            await self._spawn(name)

    async def _spawn(self, name: str) -> None:
        command = [sys.executable, "-m", name, *self._commands[name]]
        self._processes[name] = await asyncio.create_subprocess_exec(
            *command,
            *("--log-level", self._config.log_level, "--parent-fd", str(self._parent_fd)),
            pass_fds=[self._parent_fd],
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the parent, which stops them in order
        )

    async def until_ready(self) -> None:
        """Return when the gateway is SERVING. Errors: SetupError when a process ends."""
        while not await asyncio.to_thread(is_serving, self._config.ready_address):
            for name, process in self._processes.items():
                if process.returncode is not None:
                    raise SetupError(f"{name} ended: {_end_of(process)}")
            await asyncio.sleep(POLL_S)

    async def watch(self) -> None:
        """Start the runner again when it dies. Errors: FatalError when another service ends, or the
        runner does so again and again.
        """
        for _ in range(RUNNER_RESTARTS):
            name = await self._one_ended()
            if name != "runnersvc":
                raise FatalError(f"{name} ended: {_end_of(self._processes[name])}")
            log.warning("runner ended, starting it again", end=_end_of(self._processes[name]))
            await asyncio.sleep(RESTART_WAIT_S)
            await self._spawn(name)
        raise FatalError(f"{await self._one_ended()} ended after {RUNNER_RESTARTS} restarts")

    async def _one_ended(self) -> str:
        waits = {
            asyncio.create_task(process.wait()): name for name, process in self._processes.items()
        }
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return waits[done.pop()]

    async def stop(self) -> None:
        """SIGTERM each, front to back, so that answers can end; kill what outlives its grace.

        Nothing is waited for once a service behind is gone: the answers in front cannot end.
        """
        grace_s = DEFAULT_GRACE_S if self._config.grace_s is None else self._config.grace_s
        if any(process.returncode is not None for process in self._processes.values()):
            self.hasten()
        for process in self._processes.values():
            _signal(process)
            try:
                await asyncio.wait_for(process.wait(), grace_s + KILL_AFTER_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        os.close(self._parent_fd)
        os.close(self._own_fd)
        if self._own_dir:
            shutil.rmtree(self.socket_dir, ignore_errors=True)

    def hasten(self) -> None:
        """End what drains: a second SIGTERM for all."""
        for process in self._processes.values():
            _signal(process)
            _signal(process)


def _signal(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):  # it ends by itself just now
            process.send_signal(signal.SIGTERM)


def _end_of(process: asyncio.subprocess.Process) -> str:
    code = process.returncode
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}; its last line above says why"
