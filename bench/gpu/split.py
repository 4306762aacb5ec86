"""What it costs that manager and runner are processes of their own.

    python -m bench.gpu.split [--model DIR] [--pairs 5] [--kv-tokens N] [--json PATH]
                              [--device cpu] [--credits N] [--runner-args '--NAME VALUE ...']

Serves a workload, `offline`, in turns: through cachesvc and the runner as in `bench.gpu.serve`, and
with the same code in one process (`bench.gpu.in_process`). Both load the model once and stay; only
one works at a time, and each runs once to warm up. The tokens per second of the first, median of
all pairs, over those of the second is `in_process_ratio` of the workload in
bench/results/h200.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from bench.gpu.client import Client, Run
from bench.gpu.results import record_workloads
from bench.gpu.settings import MODELS, cache_settings, new_parser, runner_settings
from bench.gpu.workloads import NAMES, workload
from bench.processes import START_TIMEOUT_S, BenchError, Services
from servicekit.client import stream_channel

NO_PREFIX = [name for name in NAMES if not workload(name).common_len]
Side = Callable[[int], Awaitable[Run]]  # serves that turn of a workload, the prefix cache empty


def main() -> None:
    assert __doc__ is not None
    parser = new_parser(__doc__)
    parser.add_argument("--model", type=Path, default=MODELS / "qwen3-0.6b", help="directory")
    parser.add_argument("--only", choices=NO_PREFIX, default="offline", help="the workload")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument(
        "--kv-tokens", type=int, default=400_000, help="page pool of each side, in tokens"
    )
    args = parser.parse_args()
    try:
        ratio = asyncio.run(measure(args))
    except BenchError as error:
        sys.exit(f"no figures: {error}")
    figures = {args.model.name: {args.only: {"in_process_ratio": round(ratio, 4)}}}
    record_workloads(args.json, {}, figures)


async def measure(args: argparse.Namespace) -> float:
    """Start both sides, and compare them. Errors: BenchError."""
    runner = [*runner_settings(args.model, args), "--kv-tokens", str(args.kv_tokens)]
    cache = cache_settings(args)
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="pagewire-bench-"))
        services = stack.enter_context(Services(Path(directory), ["runnersvc", *runner], cache))
        await services.serving()
        channel = await stack.enter_async_context(stream_channel(services.cache_address))
        client = Client(channel)
        await client.open()
        whole = await WholeProcess.start(["bench.gpu.in_process", *runner, *cache])
        stack.push_async_callback(whole.stop)
        given = workload(args.only)

        async def through_services(turn: int) -> Run:
            services.check_alive()
            await client.flush()
            return await client.run(given.turn(turn))

        async def in_one_process(turn: int) -> Run:
            return await whole.run(given.name, turn)

        seconds = await interleaved(through_services, in_one_process, num_pairs=args.pairs)
    split_tok_s, whole_tok_s = (given.output_tokens / statistics.median(of) for of in seconds)
    print(f"split {split_tok_s:.0f} tokens/s, in one process {whole_tok_s:.0f}")
    return split_tok_s / whole_tok_s


async def interleaved(
    split: Side, whole: Side, *, num_pairs: int
) -> tuple[list[float], list[float]]:
    """Seconds of each side in `num_pairs` pairs, after one that does not count. Who begins changes
    from pair to pair. Errors: BenchError.
    """
    split_s: list[float] = []
    whole_s: list[float] = []
    sides = [("split", split, split_s), ("whole", whole, whole_s)]
    for turn in range(num_pairs + 1):
        for name, side, seconds in sides if turn % 2 else reversed(sides):
            run = await side(turn)
            if run.cached_tokens:
                raise BenchError(f"{name}: {run.cached_tokens} tokens were cached, none should be")
            print(f"{'pair' if turn else 'warm-up'} {turn}: {name} {run.seconds:.3f} s", flush=True)
            if turn:
                seconds.append(run.seconds)
    return split_s, whole_s


class WholeProcess:
    """The process of `bench.gpu.in_process`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str]) -> WholeProcess:
        """`command` is the module and its settings but for --listen, which it does not use.
        Returns when the model is loaded. Errors: BenchError.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *command, "--listen", "unix:none", "--log-level", "warning",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        whole = cls(process)
        try:
            await whole._answer()
        except BaseException:
            await whole.stop()
            raise
        return whole

    async def run(self, name: str, turn: int) -> Run:
        """Errors: BenchError."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {turn}\n".encode())
        return Run(*json.loads(await self._answer()))

    async def _answer(self) -> bytes:
        assert self._process.stdout is not None
        async with asyncio.timeout(START_TIMEOUT_S):
            line = await self._process.stdout.readline()
        if not line:
            raise BenchError("the process with both in it ended; its log, above, says why")
        return line

    async def stop(self) -> None:
        """End it, at once."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


if __name__ == "__main__":
    main()
