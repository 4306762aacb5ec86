"""The three services as processes of one parent: started together, stopped front to back.

Any that dies once all is ready is started again: what it kept comes back from the others. No
process outlives the parent: each holds the reading end of a pipe whose writing end is the parent's
alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import structlog

from gateway.api_keys import read_api_keys
from gateway.child import POLL_S, Child
from gateway.restarts import keep_up
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
from servicekit.path_lock import PathInUseError, remove_left
from servicekit.tls import Tls

log = structlog.get_logger()

DEFAULT_GRACE_S = 30.0
KILL_AFTER_S = 10.0  # past the grace period, which is that of all three together
LEAST_END_S = 3.0  # for each of them, whatever those in front took


class Supervisor:
    """Owns the processes and the directory of their sockets, from `start()` to `stop()`."""

    def __init__(self, model_dir: Path, config: ServeConfig, runner: Sequence[str] = ()) -> None:
        """`runner`: module and arguments of another one than runnersvc, to which the settings do
        not go.
        """
        self._runner_module, *self._runner_arguments = runner or ("runnersvc",)
        self._config = config
        self._own_dir = config.socket_dir is None
        self.socket_dir = Path(config.socket_dir or tempfile.mkdtemp(prefix="pagewire-"))
        self._commands = self._command_lines(["--model", str(model_dir)])
        modules = ("gateway", "cachesvc", self._runner_module)
        addresses = (config.ready_address, self.cache_address, self.runner_address)
        self._children = [
            Child(name, module, partial(self._arguments, name), address)
            for name, module, address in zip(self._commands, modules, addresses, strict=True)
        ]  # front to back
        self._keeping: dict[Child, asyncio.Task[None]] = {}
        self._hastened = asyncio.Event()
        self._parent_fd, self._own_fd = os.pipe()

    @property
    def cache_address(self) -> str:
        return f"unix:{self.socket_dir}/cache.sock"

    @property
    def _journal(self) -> Path:
        """What a manager that is started again takes over from the one before."""
        return self.socket_dir / "journal"

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
        cachesvc += ["--journal", str(self._journal)]
        runnersvc = ["--listen", self.runner_address]
        if self._runner_arguments:
            runnersvc += self._runner_arguments
        else:
            runnersvc += [*model, *config.arguments(RUNNER_SETTINGS, RUNNER_NAMES)]
        return {
            "gateway": gateway + config.arguments(GATEWAY_SETTINGS, {}),
            "cachesvc": cachesvc + config.arguments(CACHE_SETTINGS, CACHE_NAMES),
            "runnersvc": runnersvc,
        }

    def _arguments(self, name: str, life: int) -> list[str]:
        """Of a service that is started for the `life`-th time. Each life records into a file of its
        own: FILE, then FILE.2, and so on.
        """
        arguments = [*self._commands[name], "--log-level", self._config.log_level]
        if name == "cachesvc" and self._config.record is not None and life > 1:
            arguments += ["--record", f"{self._config.record}.{life}"]  # the last one counts
        return arguments

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
        for child in self._children:
            await child.start(self._parent_fd)

    async def until_ready(self) -> None:
        """Return when the gateway is SERVING. Errors: SetupError when a process ends."""
        while not await asyncio.to_thread(is_serving, self._config.ready_address):
            for child in self._children:
                if child.end is not None:
                    raise SetupError(f"{child.name} ended: {child.end}")
            await asyncio.sleep(POLL_S)
        for child in self._children:  # one serves as long as those behind it do
            child.served = True

    async def watch(self) -> None:
        """Start again whatever dies, also while `stop` waits for what is in front of it.

        Errors: FatalError when a service ends again and again without having been SERVING.
        """
        for child in self._children:
            self._keeping[child] = asyncio.create_task(self._keep_up(child))
        done, _ = await asyncio.wait(self._keeping.values(), return_when=asyncio.FIRST_COMPLETED)
        for keeping in done:
            keeping.result()

    async def _keep_up(self, child: Child) -> None:
        behind = self._children[self._children.index(child) + 1 :]
        try:
            await keep_up(
                child,
                self._parent_fd,
                could_serve=lambda: all(each.is_running and each.served for each in behind),
            )
        except FatalError:
            self.hasten()  # answers of those in front cannot end
            raise

    async def stop(self) -> None:
        """SIGTERM each, front to back, so that answers can end; those behind are kept up meanwhile.
        Kill what outlives the grace period.
        """
        grace_s = DEFAULT_GRACE_S if self._config.grace_s is None else self._config.grace_s
        if any(child.end is not None and child not in self._keeping for child in self._children):
            self.hasten()
        kill_at_s = time.monotonic() + grace_s + KILL_AFTER_S
        for child in self._children:
            if (keeping := self._keeping.get(child)) is not None:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
            await self._end(child, max(kill_at_s - time.monotonic(), LEAST_END_S))
        os.close(self._parent_fd)
        os.close(self._own_fd)
        self._remove_left()

    async def _end(self, child: Child, within_s: float) -> None:
        """Have it end within `within_s` seconds, or sooner when hastened."""
        child.terminate()
        ending = asyncio.create_task(child.ended())
        hastened = asyncio.create_task(self._hastened.wait())
        await asyncio.wait(
            (ending, hastened), timeout=within_s, return_when=asyncio.FIRST_COMPLETED
        )
        if hastened.done() and not ending.done():
            child.terminate(at_once=True)
            await asyncio.wait((ending,), timeout=KILL_AFTER_S)
        hastened.cancel()
        if not ending.done():
            log.warning("child does not end, killing it", child=child.name)
            child.kill()
        await ending

    def _remove_left(self) -> None:
        """Sockets that a killed child left, and the journal: its pages ended with the runner."""
        if self._own_dir:
            shutil.rmtree(self.socket_dir, ignore_errors=True)
            return
        addresses = (self._config.admin, self.cache_address, self.runner_address)
        sockets = [Path(one.removeprefix("unix:")) for one in addresses if one.startswith("unix:")]
        half_written = self._journal.with_name(self._journal.name + ".new")  # prompts are in it too
        for paths in (*((path,) for path in sockets), (self._journal, half_written)):
            with contextlib.suppress(PathInUseError):  # it is another's by now
                remove_left(*paths)

    def hasten(self) -> None:
        """Wait no longer for answers: each child gets a second signal when it is its turn to end,
        and KILL_AFTER_S from then on.
        """
        self._hastened.set()
