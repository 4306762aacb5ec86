"""Another gateway in front of a running system, with settings of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from servicekit.health_check import is_serving
from tests.e2e.system import START_TIMEOUT_S, System, free_port


@dataclass
class SecondGateway:
    """A process, and where it answers."""

    process: subprocess.Popen[bytes]
    address: str
    http_address: str
    admin_address: str
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text()


@contextmanager
def second_gateway(system: System, run_dir: Path, *settings: str) -> Iterator[SecondGateway]:
    """SERVING at first; ended at last, if it did not end before."""
    listen, http, admin = (f"127.0.0.1:{free_port()}" for _ in range(3))
    command = [sys.executable, "-m", "gateway", "--listen", listen, "--http", http]
    command += ["--admin", admin, "--cache", system.cache_address]
    command += ["--model", str(system.model_dir), *settings]
    log_path = run_dir / "second_gateway.log"
    with log_path.open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not is_serving(admin):
                assert process.poll() is None, log_path.read_text()
                assert time.monotonic() < deadline, log_path.read_text()
                time.sleep(0.05)
            yield SecondGateway(process, listen, http, admin, log_path)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
