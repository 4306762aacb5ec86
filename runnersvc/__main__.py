"""`python -m runnersvc`."""

from __future__ import annotations

import os

from runnersvc.config import RunnerConfig
from servicekit.process import run_service


async def _serve(config: RunnerConfig) -> None:
    from runnersvc.server import serve  # brings torch, which reads the environment once

    await serve(config)


if __name__ == "__main__":
    # How long OpenMP's threads spin between operations. With torch's default, one row's step takes
    # 37 ms on two quiet cores and 316 ms beside three busy processes; with this, 38 and 164.
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")
    run_service(
        "runnersvc", "Pagewire's runner: executes plans on one device.", RunnerConfig, _serve
    )
