"""`python -m runnersvc`."""

from __future__ import annotations

from runnersvc.config import RunnerConfig
from runnersvc.server import serve
from servicekit.process import run_service

if __name__ == "__main__":
    run_service(
        "runnersvc", "Pagewire's runner: executes plans on one device.", RunnerConfig, serve
    )
