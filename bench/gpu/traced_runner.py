"""`python -m bench.gpu.traced_runner`: the runner with a trace of its plans, which it writes to
`--trace` when it ends. All other settings are those of `python -m runnersvc`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.gpu.trace import serve_traced
from runnersvc.config import RunnerConfig
from servicekit.config import setting
from servicekit.process import run_service


@dataclass(frozen=True)
class TracedRunnerConfig(RunnerConfig):
    """The runner's own, and where the trace goes."""

    trace: str = setting("file for the trace", "trace.jsonl")


async def serve(config: TracedRunnerConfig) -> None:
    """Run until SIGTERM. Errors: SetupError, FatalError."""
    from runnersvc.server import checked, load

    spec = checked(config)
    await serve_traced(config, partial(load, config, spec), Path(config.trace))


if __name__ == "__main__":
    run_service("runnersvc", "Pagewire's runner, traced.", TracedRunnerConfig, serve)
