"""The router smg, as it is published, in front of a gateway that speaks its protocol."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.system import START_TIMEOUT_S, System, free_port


@dataclass(frozen=True)
class Router:
    """Where the router answers, and where the gateway behind it does."""

    http_address: str
    gateway_address: str


@contextmanager
def routed(system: System, run_dir: Path) -> Iterator[Router]:
    """A router before one more gateway of `system`. It is told the gateway's address and nothing of
    the model.
    """
    port, router = free_port(), Router(f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
    gateway = ["--listen", router.gateway_address, "--cache", system.cache_address]
    commands = {
        "gateway": [*gateway, "--model", str(system.model_dir), "--smg"],
        "smg": [
            *("launch", "--worker-urls", f"grpc://{router.gateway_address}"),
            *("--host", "127.0.0.1", "--port", router.http_address.rpartition(":")[2]),
            *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(port)),
            *("--shutdown-grace-period-secs", "1"),
        ],
    }
    processes = []
    try:
        for name, arguments in commands.items():
            with (run_dir / f"{name}.log").open("wb") as log:
                command = [sys.executable, "-m", name, *arguments]
                processes.append(
                    subprocess.Popen(
                        command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=run_dir
                    )
                )
            if name == "gateway":
                system.wait_serving(router.gateway_address)
        _wait_ready(router, run_dir / "smg.log")
        yield router
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_ready(router: Router, log: Path) -> None:
    """Until it has the gateway and the gateway's tokenizer."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(f"http://{router.http_address}/readiness", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.05)
