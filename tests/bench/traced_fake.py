"""`python -m tests.bench.traced_fake`: the fake runner, traced as the benchmark's runner is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.gpu.trace import serve_traced
from runnersvc.fake import FakeRunnerConfig, load
from servicekit.config import setting
from servicekit.process import run_service


@dataclass(frozen=True)
class TracedFakeConfig(FakeRunnerConfig):
    trace: str = setting("file for the trace", "trace.jsonl")


async def serve(config: TracedFakeConfig) -> None:
    await serve_traced(config, partial(load, config), Path(config.trace))


if __name__ == "__main__":
    run_service("runnersvc.fake", "A traced runner without a model.", TracedFakeConfig, serve)
