"""The three services as real processes on real sockets, and a client of each."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
from pagewire.v1 import cache_pb2, cache_pb2_grpc, inference_pb2, inference_pb2_grpc, sampling_pb2

from servicekit.health_check import is_serving

START_TIMEOUT_S = 90.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class System:
    """Processes by name; `runner_front` is the address at which cachesvc looks for the runner."""

    def __init__(
        self, model_dir: Path, run_dir: Path, runner_front: str | None = None, **settings: object
    ) -> None:
        self.model_dir = model_dir
        self.run_dir = run_dir
        self.address = f"127.0.0.1:{free_port()}"
        self.http_address = f"127.0.0.1:{free_port()}"
        self.admin_address = f"127.0.0.1:{free_port()}"
        self.cache_address = f"unix:{run_dir}/cache.sock"
        self.runner_address = f"unix:{run_dir}/runner.sock"
        self._runner_front = runner_front or self.runner_address
        self._settings = settings
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for name in ("runnersvc", "cachesvc", "gateway"):
            self.start_one(name)
        self.wait_serving(self.address)

    def start_one(self, name: str) -> None:
        with (self.run_dir / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self.command(name), stderr=log, stdin=subprocess.DEVNULL
            )

    def command(self, name: str) -> list[str]:
        model = ["--model", str(self.model_dir)]
        arguments = {
            "runnersvc": ["--listen", self.runner_address, *model],
            "cachesvc": ["--listen", self.cache_address, "--runner", self._runner_front],
            "gateway": [
                *("--listen", self.address, "--http", self.http_address),
                *("--admin", self.admin_address, "--cache", self.cache_address, *model),
            ],
        }
        owners = {
            "step_budget_tokens": "cachesvc",
            "journal": "cachesvc",
            "record": "cachesvc",
            "metrics": "cachesvc",
            "runner_silence_s": "cachesvc",
            "max_message_bytes": "gateway",
            "served_name": "gateway",
            "manager_silence_s": "gateway",
            "max_outage_s": "gateway",
        }
        for setting, value in self._settings.items():
            if owners.get(setting, "runnersvc") == name:
                arguments[name] += [f"--{setting.replace('_', '-')}", str(value)]
        return [sys.executable, "-m", name, *arguments[name]]

    def wait_serving(self, address: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_serving(address):
            for name, process in self.processes.items():
                assert process.poll() is None, f"{name} ended: {self.log_of(name)}"
            assert time.monotonic() < deadline, (
                f"{address} is not SERVING: {self.log_of('cachesvc')}"
            )
            time.sleep(0.05)

    def log_of(self, name: str) -> str:
        return (self.run_dir / f"{name}.log").read_text()

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The runner stands still while the context lasts, so that no answer ends."""
        self.processes["runnersvc"].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.processes["runnersvc"].send_signal(signal.SIGCONT)

    def stop(self) -> dict[str, int]:
        """Exit codes after SIGTERM, front to back."""
        codes = {}
        for name in ("gateway", "cachesvc", "runnersvc"):
            if name in self.processes:
                self.processes[name].terminate()
                codes[name] = self.processes[name].wait(timeout=30)
        return codes

    def stats(self) -> cache_pb2.GetStatsResponse:
        with grpc.insecure_channel(self.cache_address) as channel:
            return cache_pb2_grpc.CacheServiceStub(channel).GetStats(
                cache_pb2.GetStatsRequest(), timeout=10
            )

    async def settled(self) -> cache_pb2.GetStatsResponse:
        """The stats once nothing runs or waits and every page is free or evictable."""
        return await self._until(
            lambda stats: (
                stats.running_requests + stats.waiting_requests == 0
                and stats.free_pages + stats.evictable_pages == stats.num_pages
                and stats.last_plan_id == stats.last_result_plan_id
            )
        )

    async def running(self, num_requests: int) -> cache_pb2.GetStatsResponse:
        """The stats once so many requests run."""
        return await self._until(lambda stats: stats.running_requests == num_requests)

    async def attached(self, times: int) -> cache_pb2.GetStatsResponse:
        """The stats once a runner attached so many times."""
        return await self._until(lambda stats: stats.attached_total >= times)

    async def _until(
        self, holds: Callable[[cache_pb2.GetStatsResponse], bool]
    ) -> cache_pb2.GetStatsResponse:
        async with grpc.aio.insecure_channel(self.cache_address) as channel:
            stub = cache_pb2_grpc.CacheServiceStub(channel)
            async with asyncio.timeout(30):
                while True:
                    stats = await stub.GetStats(cache_pb2.GetStatsRequest())
                    assert pages_of(stats) == stats.num_pages
                    if holds(stats):
                        return stats
                    await asyncio.sleep(0.01)

    @contextlib.asynccontextmanager
    async def client(self):
        async with grpc.aio.insecure_channel(
            self.address,
            options=[("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)],
        ) as channel:
            yield inference_pb2_grpc.InferenceServiceStub(channel)


def pages_of(stats: cache_pb2.GetStatsResponse) -> int:
    """The left side of the page equation."""
    held = stats.locked_pages + stats.private_pages + stats.quarantined_pages
    return stats.free_pages + stats.evictable_pages + held


@contextlib.contextmanager
def running(system: System) -> Iterator[System]:
    try:
        system.start()
        yield system
    finally:
        for process in system.processes.values():
            if process.poll() is None:
                os.kill(process.pid, signal.SIGTERM)
        for process in system.processes.values():
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def greedy(
    prompt_ids: list[int], max_tokens: int, **fields: object
) -> inference_pb2.GenerateRequest:
    """A prompt of ids continued greedily past end tokens."""
    return inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=prompt_ids),
        sampling=sampling_pb2.SamplingParams(temperature=0),
        stop=inference_pb2.StopParams(max_tokens=max_tokens, ignore_eos=True),
        **fields,
    )


async def ids_of(call) -> list[int]:
    """All token ids of a stream from here on; its first messages may have been read."""
    ids: list[int] = []
    while (response := await call.read()) is not grpc.aio.EOF:
        ids += response.delta.token_ids
    return ids
