"""The three services as processes of one parent: started together, ready together, stopped front to
back.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from gateway.serve_config import CACHE_SETTINGS, GATEWAY_SETTINGS, RUNNER_SETTINGS, ServeConfig
from servicekit.errors import SetupError
from servicekit.health_check import is_serving

POLL_S = 0.1
DEFAULT_GRACE_S = 30.0
KILL_AFTER_S = 10.0  # past the grace period


class Supervisor:
    """Owns the processes and the directory of their sockets, from `start()` to `stop()`."""

    def __init__(self, model_dir: Path, config: ServeConfig) -> None:
        self._config = config
        self._own_dir = config.socket_dir is None
        self.socket_dir = Path(config.socket_dir or tempfile.mkdtemp(prefix="pagewire-"))
        self._model_dir = model_dir
        self._processes: dict[str, asyncio.subprocess.Process] = {}  # front to back

    @property
    def cache_address(self) -> str:
        return f"unix:{self.socket_dir}/cache.sock"

    @property
    def runner_address(self) -> str:
        return f"unix:{self.socket_dir}/runner.sock"

    async def start(self) -> None:
        """Start the gateway first: it takes the public address, or fails, before any weight is
        loaded.
        """
        config, model = self._config, ["--model", str(self._model_dir)]
        await self._spawn(
            "gateway",
            [
                "--listen",
                config.listen,
                "--cache",
                self.cache_address,
                *model,
                *config.arguments(GATEWAY_SETTINGS),
            ],
        )
        await self._spawn(
            "cachesvc",
            [
                "--listen",
                self.cache_address,
                "--runner",
                self.runner_address,
                *config.arguments(CACHE_SETTINGS),
            ],
        )
        await self._spawn(
            "runnersvc",
            ["--listen", self.runner_address, *model, *config.arguments(RUNNER_SETTINGS)],
        )

    async def _spawn(self, name: str, arguments: list[str]) -> None:
        self._processes[name] = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            name,
            *arguments,
            "--log-level",
            self._config.log_level,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the parent, which stops them in order
        )

    async def until_ready(self) -> None:
        """Return when the public address is SERVING. Errors: SetupError when a process ends."""
        while not await asyncio.to_thread(is_serving, self._config.listen):
            self._check_alive()
            await asyncio.sleep(POLL_S)

    async def until_one_ends(self) -> None:
        """Errors: SetupError naming the process that ended."""
        await asyncio.wait(
            [asyncio.ensure_future(process.wait()) for process in self._processes.values()],
            return_when=asyncio.FIRST_COMPLETED,
        )
        self._check_alive()

    def _check_alive(self) -> None:
        for name, process in self._processes.items():
            if process.returncode is not None:
                raise SetupError(
                    f"{name} ended with code {process.returncode}; its last line above says why"
                )

    async def stop(self) -> None:
        """SIGTERM each, front to back, so that answers can end; kill what outlives its grace."""
        grace_s = DEFAULT_GRACE_S if self._config.grace_s is None else self._config.grace_s
        for process in self._processes.values():
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                try:
                    await asyncio.wait_for(process.wait(), grace_s + KILL_AFTER_S)
                except TimeoutError:
                    process.kill()
                    await process.wait()
        if self._own_dir:
            shutil.rmtree(self.socket_dir, ignore_errors=True)
