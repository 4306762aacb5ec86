"""One load of streams: the services with a fake runner, k6 in front of them, and what both tell."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.load.watch import Sample, watched
from bench.processes import BenchError, Services
from gateway.tokenizer import Tokenizer

SCRIPT = Path(__file__).with_suffix(".js")
QUESTION = "What is a page table of a cache of keys and values, and who fills it, and when?"
ANSWER = (
    "A page table maps positions to locations. When a request grows, the manager gives it pages "
    "from the free list, and the plan that is sent next fills the table in one scattered write. "
)
PROMPT_TOKENS = 64  # at most
PAGE_SIZE = 16


@dataclass(frozen=True)
class Load:
    """So many streams, each of answers one after the other, a token a step."""

    streams: int
    step_ms: float
    answer_tokens: int
    warm_up_s: float  # at least an answer's time: only then as many begin as end
    measured_s: float

    @property
    def answer_s(self) -> float:
        return self.answer_tokens * self.step_ms / 1e3

    @property
    def sampled_every_s(self) -> float:
        """A scrape is work for the gateway too: at most one a second."""
        return min(1.0, self.measured_s / 10)

    @property
    def due_tok_s(self) -> float:
        """What the runner would sample if no stream ever waited for its next answer to begin."""
        return self.streams * 1e3 / self.step_ms

    @property
    def num_pages(self) -> int:
        """Twice what all streams can need, so that nobody is preempted and pages are evicted."""
        return 2 * self.streams * -(-(PROMPT_TOKENS + self.answer_tokens) // PAGE_SIZE)


class Seen(NamedTuple):
    """What a run came to: k6's summary, and samples of the time that it measured."""

    client: dict[str, Any]
    samples: list[Sample]


async def run(load: Load, model_dir: Path) -> Seen:
    """Errors: BenchError when a process ends, k6 does not run, or a stream fails."""
    with tempfile.TemporaryDirectory(prefix="pagewire-load-") as name:
        run_dir = Path(name)
        front, http, cache_metrics = (f"127.0.0.1:{port}" for port in _free_ports(3))
        model = ["--model", str(model_dir)]
        ids = Tokenizer.load(model_dir).encode(ANSWER)
        limits = ["--max-running-reqs", load.streams, "--num-pages", load.num_pages]
        limits += ["--max-seq-len", PROMPT_TOKENS + load.answer_tokens, "--page-size", PAGE_SIZE]
        answer = ["--step-ms", load.step_ms, "--tokens", ",".join(map(str, ids))]
        services = Services(
            run_dir,
            ["runnersvc.fake", *model, *map(str, limits + answer)],
            ["--metrics", cache_metrics],
            front,
            ["--http", http, *model],
        )
        metrics = {
            "gateway": f"http://{http}/metrics",
            "cachesvc": f"http://{cache_metrics}/metrics",
        }
        with services:
            await services.serving()
            client, samples = await _asked(load, services, front, metrics, run_dir)
            services.stop()
    from_ms = client["measured_from_ms"]
    until_ms = from_ms + load.measured_s * 1e3
    measured = [sample for sample in samples if from_ms <= sample.at_ms <= until_ms]
    if len(measured) < 2:
        raise BenchError("the machine is too busy for this: there are no two samples of the run")
    return Seen(client, measured)


async def _asked(
    load: Load, services: Services, front: str, metrics: dict[str, str], run_dir: Path
) -> tuple[dict[str, Any], list[Sample]]:
    summary, log = run_dir / "summary.json", run_dir / "k6.log"
    settings = {
        "ADDRESS": front,
        "SUMMARY": str(summary),
        "QUESTION": QUESTION,
        "STREAMS": load.streams,
        "ANSWER_TOKENS": load.answer_tokens,
        "ANSWER_S": load.answer_s,
        "WARM_UP_S": load.warm_up_s,
        "MEASURED_S": load.measured_s,
    }
    samples: list[Sample] = []
    with log.open("wb") as said:
        k6 = await asyncio.create_subprocess_exec(
            *(k6_path(), "run", "--quiet", "--no-usage-report", "--no-color", str(SCRIPT)),
            env={**os.environ, **{name: str(value) for name, value in settings.items()}},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    pids = {name: services.pid_of(name) for name in ("gateway", "cachesvc", "runnersvc")}
    pids["k6"] = k6.pid
    others = [
        asyncio.create_task(
            watched(pids, services.cache_address, metrics, samples, load.sampled_every_s)
        ),
        asyncio.create_task(services.watch()),
    ]
    ended = asyncio.create_task(k6.wait())
    try:
        done, _ = await asyncio.wait([ended, *others], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {ended}:
            task.result()  # raises: neither ends by itself
    finally:
        if k6.returncode is None:
            k6.kill()
            await k6.wait()
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    client = json.loads(summary.read_text()) if summary.exists() else None
    if client is None or k6.returncode != 0 or client["failures"]:
        failed = "k6 told nothing" if client is None else f"{client['failures']} answers failed"
        raise BenchError(f"{failed}, k6 ended with {k6.returncode}: {log.read_text()[-2000:]}")
    return client, samples


def k6_path() -> str:
    """Beside this interpreter, else on PATH. Errors: BenchError without one."""
    beside = Path(sys.executable).parent / "k6"
    found = str(beside) if beside.exists() else shutil.which("k6")
    if found is None:
        raise BenchError("there is no k6: install the extra load, as make load does")
    return found


def _free_ports(count: int) -> Iterator[int]:
    with contextlib.ExitStack() as probes:
        for _ in range(count):
            probe = probes.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            yield int(probe.getsockname()[1])
