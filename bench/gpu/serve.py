"""Whole workloads through cachesvc and the runner, as two processes, on one card.

    python -m bench.gpu.serve [--model DIR ...] [--only WORKLOAD] [--device cpu] [--json PATH]
                              [--credits N] [--runner-args '--NAME VALUE ...']

Without --model: every workload with qwen3-0.6b, `offline` with qwen3-14b too. Writes `workloads` of
bench/results/h200.json (`bench.gpu.figures` says what the fields are), and prints them. Each
workload finds the prefix cache empty, runs once to warm up and once, with other ids, to be counted.
Exits with 1 and writes nothing when a request fails, has a wrong number of tokens, or finds another
number of tokens in the cache than it should.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu.client import Client, Run
from bench.gpu.figures import figures_of
from bench.gpu.limits import limit
from bench.gpu.results import record_workloads
from bench.gpu.settings import MODELS, cache_settings, ceilings, new_parser, runner_settings
from bench.gpu.trace import read_trace
from bench.gpu.workloads import NAMES, Workload, workload
from bench.processes import BenchError, Services
from runnersvc.families import load_spec
from servicekit.client import stream_channel

DEFAULT_JOBS = ((MODELS / "qwen3-0.6b", NAMES), (MODELS / "qwen3-14b", ("offline",)))
Figures = dict[str, dict[str, Any]]  # by workload


def main() -> None:
    assert __doc__ is not None
    parser = new_parser(__doc__)
    parser.add_argument("--model", type=Path, action="append", help="directory; may be repeated")
    parser.add_argument("--only", choices=NAMES, help="one workload")
    args = parser.parse_args()
    try:
        measured_ceilings = ceilings(args.device)
        print(", ".join(f"{name} {gbps:.0f}" for name, gbps in measured_ceilings.items()))
        for model_dir, names in jobs(args):
            workloads = [workload(name) for name in names]
            figures = serve(model_dir, workloads, args, measured_ceilings["read_gbps"])
            record_workloads(args.json, measured_ceilings, {model_dir.name: figures})
    except BenchError as error:
        sys.exit(f"no figures: {error}")


def jobs(args: argparse.Namespace) -> list[tuple[Path, Sequence[str]]]:
    """Which models serve which workloads."""
    given = DEFAULT_JOBS if args.model is None else [(model_dir, NAMES) for model_dir in args.model]
    wanted = [
        (model_dir, [name for name in names if args.only in (None, name)])
        for model_dir, names in given
    ]
    return [(model_dir, names) for model_dir, names in wanted if names]


def serve(
    model_dir: Path, workloads: Sequence[Workload], args: argparse.Namespace, read_gbps: float
) -> Figures:
    """The figures of one model. Errors: BenchError."""
    runner = ["bench.gpu.traced_runner", *runner_settings(model_dir, args)]
    limits = [limit(one, load_spec(model_dir), read_gbps).tok_s for one in workloads]
    print(f"{model_dir.name}:")
    return measure(runner, cache_settings(args), workloads, limits)


def measure(
    runner: Sequence[str],
    cache: Sequence[str],
    workloads: Sequence[Workload],
    limits_tok_s: Sequence[float],
) -> Figures:
    """Start the services with these settings, serve the workloads, and stop them.

    `runner` is the module of a traced runner and its settings, but for --listen and --trace.
    """
    with tempfile.TemporaryDirectory(prefix="pagewire-bench-") as directory:
        run_dir = Path(directory)
        trace_path = run_dir / "trace.jsonl"
        with Services(run_dir, [*runner, "--trace", str(trace_path)], cache) as services:
            runs = asyncio.run(counted_runs(services, workloads))
            services.stop()
        trace = read_trace(trace_path)
    figures = {
        one.name: figures_of(one, run, trace, limit_tok_s) | {"ready_s": services.ready_s}
        for one, run, limit_tok_s in zip(workloads, runs, limits_tok_s, strict=True)
    }
    for name, measured in figures.items():
        print(f"  {name:10}", "  ".join(f"{key} {value}" for key, value in measured.items()))
    return figures


async def counted_runs(services: Services, workloads: Sequence[Workload]) -> list[Run]:
    """Serve each workload twice; the second runs. Errors: BenchError, too when a process ends."""
    await services.serving()
    async with stream_channel(services.cache_address) as channel:
        client = Client(channel)
        await client.open()
        serving = asyncio.create_task(_serve_all(client, workloads))
        watching = asyncio.create_task(services.watch())
        await asyncio.wait((serving, watching), return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await watching
        watching.cancel()
        return await serving


async def _serve_all(client: Client, workloads: Sequence[Workload]) -> list[Run]:
    runs = []
    for one in workloads:
        await client.flush()
        await client.run(one)
        run = await client.run(one.turn(1))
        if run.cached_tokens != one.cached_tokens:
            raise BenchError(
                f"{one.name}: {run.cached_tokens} tokens were cached, {one.cached_tokens} should be"
            )
        print(f"  {one.name:10} {run.seconds:.3f} s", flush=True)
        runs.append(run)
    return runs


if __name__ == "__main__":
    main()
