"""The system under chaos: a runner, a manager, two gateways, and a cutter in each long stream."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grpc
from pagewire.v1 import cache_pb2, cache_pb2_grpc

from tests.chaos.load import Door
from tests.e2e.stream_cutter import StreamCutter
from tests.e2e.system import System, free_port, running

GATEWAYS = ("gateway_0", "gateway_1")
EXECUTE, SESSIONS = "execute", ("session_0", "session_1")
RUNNER_SILENCE_S, MANAGER_SILENCE_S = 1.0, 1.5  # short ones: stops last up to 3 s
STOP_TIMEOUT_S = 40.0


@cache
def settings_of(service: str) -> str:
    """The text of `--help`."""
    asked = subprocess.run(
        [sys.executable, "-m", service, "--help"], capture_output=True, text=True, check=True
    )
    return asked.stdout


class ChaosSystem(System):
    """Processes go by the names of their logs; cutters by those of their streams."""

    def __init__(
        self, model_dir: Path, run_dir: Path, cutters: dict[str, StreamCutter], **settings: object
    ) -> None:
        super().__init__(model_dir, run_dir, cutters[EXECUTE].front_address, **settings)
        self.cutters = cutters
        self.doors = [Door(name, f"127.0.0.1:{free_port()}") for name in GATEWAYS]
        self.names = ("runnersvc", "cachesvc", *GATEWAYS)

    def start(self) -> None:
        for name in self.names:
            self.start_one(name)
        for door in self.doors:
            self.wait_serving(door.address)

    def command(self, name: str) -> list[str]:
        if name not in GATEWAYS:
            command = super().command(name)
            if name == "cachesvc" and "--journal" in settings_of(name):
                command += ["--journal", str(self.run_dir / "journal")]
            if name == "cachesvc" and "--runner-silence-s" in settings_of(name):
                command += ["--runner-silence-s", str(RUNNER_SILENCE_S)]
            return command
        nth = GATEWAYS.index(name)
        command = [sys.executable, "-m", "gateway", "--listen", self.doors[nth].address]
        command += ["--cache", self.cutters[SESSIONS[nth]].front_address]
        command += ["--model", str(self.model_dir)]
        if "--manager-silence-s" in settings_of("gateway"):
            command += ["--manager-silence-s", str(MANAGER_SILENCE_S)]
        return command

    def stop_and_look(self) -> list[str]:
        """SIGTERM to all, front to back. Returns what is wrong with how they ended."""
        wrong = []
        for name in reversed(self.names):
            process = self.processes[name]
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                wrong.append(f"{name} is still there {STOP_TIMEOUT_S} s after SIGTERM")
                continue
            if code != 0:
                wrong.append(f"{name} ended with {code} on SIGTERM")
        left = {path.name for path in self.run_dir.iterdir()} - {"journal", "model"}
        fronts = {path.removeprefix(f"unix:{self.run_dir}/") for path in self._fronts()}
        left = {name for name in left - fronts if not name.endswith(".log")}
        return wrong + [f"{name} was left" for name in sorted(left)]

    def _fronts(self) -> list[str]:
        return [cutter.front_address for cutter in self.cutters.values()]

    def wait_all_serving(self) -> None:
        """Errors: AssertionError as `wait_serving`."""
        for door in self.doors:
            self.wait_serving(door.address)

    def violations(self) -> list[str]:
        """Of `CheckIntegrity`."""
        with grpc.insecure_channel(self.cache_address) as channel:
            stub = cache_pb2_grpc.CacheServiceStub(channel)
            answer = stub.CheckIntegrity(cache_pb2.CheckIntegrityRequest(), timeout=30)
        return list(answer.violations)


@contextlib.contextmanager
def chaos_system(model_dir: Path, run_dir: Path, **settings: object) -> Iterator[ChaosSystem]:
    """SERVING at first. What is stopped or dead at last is killed."""
    backs = {EXECUTE: "runner.sock"} | dict.fromkeys(SESSIONS, "cache.sock")
    cutters = {
        name: StreamCutter(run_dir / f"{name}.sock", run_dir / back) for name, back in backs.items()
    }
    with contextlib.ExitStack() as stack:
        for cutter in cutters.values():
            stack.enter_context(cutter.running())
        system = stack.enter_context(running(ChaosSystem(model_dir, run_dir, cutters, **settings)))
        try:
            yield system
        finally:
            for process in system.processes.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGCONT)
