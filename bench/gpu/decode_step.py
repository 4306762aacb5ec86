"""Whole decode steps of a model on this GPU, through plans: `python -m bench.gpu.decode_step`.

Random weights, bfloat16, page size 16, temperature 0.6, two plans always under way. Writes `step`
of h200.json, by model and rows x context: `us` of a step from plan to plan; where they go on the
device, by the profiler: `gemm_us`, `attention_us`, `rest_us`; and `gap_us` between two steps. A
kernel that waits for the one before it has its time from that one's end on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter, deque
from pathlib import Path

import numpy as np
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from bench.gpu.results import H200, commit
from runnersvc.config import RunnerConfig
from runnersvc.executor import Executed, Launched
from runnersvc.model_runner import ModelRunner
from runnersvc.server import checked, load
from servicekit.plan import Int32Array, Plan, RowOpen

MODELS = Path(__file__).parents[1] / "models"
PAGE_SIZE, MAX_ROWS = 16, 256
CASES = ((1, 640), (1, 1000), (8, 640), (32, 640), (32, 1000), (128, 900), (256, 1000))
STEPS, PROFILED_STEPS, UNDER_WAY = 60, 5, 2
ATTENTION = ("attend", "combine", "plan_kernel")
GEMM = ("gemm", "gemv", "nvjet", "cutlass", "multiply_kernel", "dot_kernel", "splitK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, default=H200)
    parser.add_argument("--model", action="append", help="of bench/models; qwen3-0.6b, qwen3-14b")
    parser.add_argument("--kernels", action="store_true", help="print every kernel's share")
    args = parser.parse_args()
    path: Path = args.json
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in args.model or ["qwen3-0.6b", "qwen3-14b"]:
        began = time.perf_counter()
        config = RunnerConfig(
            listen="",
            model=str(MODELS / name),
            device="cuda",
            load_format="dummy",
            page_size=PAGE_SIZE,
            kv_tokens=MAX_ROWS * 1100,
            max_running_reqs=MAX_ROWS,
            max_seq_len=2048,
        )
        runner, _ = load(config, checked(config))
        print(f"{name}: loaded and captured in {time.perf_counter() - began:.1f} s")
        figures = {}
        for rows, context in CASES:
            figures[f"{rows}x{context}"] = figure = _case(
                runner, rows, context, show_kernels=args.kernels
            )
            print(f"{rows}x{context}", figure, flush=True)
        results.setdefault("step", {})[name] = {"commit": commit(), **figures}
        del runner
        torch.cuda.empty_cache()
    path.write_text(json.dumps(results, indent=2) + "\n")


@torch.inference_mode()
def _case(
    runner: ModelRunner, num_rows: int, context: int, *, show_kernels: bool
) -> dict[str, float]:
    """Rows of random K and V: a prompt of one token each, then steps that say they are longer."""
    steps = _Steps(runner, num_rows, context)
    for _ in range(UNDER_WAY):
        steps.launch()
    device_us, gap_us = [], []
    began = time.perf_counter()
    for _ in range(STEPS):
        steps.launch()
        executed = steps.wait()
        device_us.append(executed.device_us)
        gap_us.append(executed.gap_us or 0)
    us = (time.perf_counter() - began) * 1e6 / STEPS
    shares = steps.profiled(show_kernels=show_kernels)
    steps.finish()
    return {
        "us": round(us, 1),
        "device_us": statistics.median(device_us),
        "gap_us": statistics.median(gap_us),
        **{f"{name}_us": round(shares[name], 1) for name in ("gemm", "attention", "rest")},
        "tok_s": round(num_rows / us * 1e6),
    }


class _Steps:
    """Decode steps of rows that are `context` long at first, one token longer each time."""

    def __init__(self, runner: ModelRunner, num_rows: int, context: int) -> None:
        self._runner = runner
        self._rows = np.arange(num_rows, dtype=np.int32)
        self._cached = np.full(num_rows, context - 1, dtype=np.int32)
        self._launched: deque[Launched] = deque([runner.launch(self._first(context))])
        self.wait()

    def launch(self) -> None:
        self._cached = self._cached + 1
        self._launched.append(self._runner.launch(_plan(self._rows, self._cached, None)))

    def wait(self) -> Executed:
        return self._launched.popleft().wait()

    def finish(self) -> None:
        while self._launched:
            self.wait()

    def profiled(self, *, show_kernels: bool) -> Counter[str]:
        """Microseconds of a step on the device, by kind."""
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for _ in range(PROFILED_STEPS):
                self.launch()
                self.wait()
            torch.cuda.synchronize()
        shares: Counter[str] = Counter()
        of_kernel: Counter[str] = Counter()
        # A kernel that waits for another has come before: what it takes begins where that ends.
        kernels = sorted(
            (event.time_range.end, event.time_range.start, event.name)
            for event in profiled.events()
            if event.device_type == DeviceType.CUDA
        )
        before = 0.0
        for end, start, name in kernels:
            us = (end - max(start, before)) / PROFILED_STEPS
            before = end
            of_kernel[name[:90]] += us
            shares[_kind(name)] += us
        if show_kernels:
            for name, us in of_kernel.most_common():
                print(f"    {us:9.1f} us  {name}")
        return shares

    def _first(self, context: int) -> Plan:
        num_rows = len(self._rows)
        pages = -(-(context + STEPS + PROFILED_STEPS + UNDER_WAY + 2) // PAGE_SIZE)
        rng = np.random.default_rng(0)
        page_ids = rng.permutation(self._runner.num_pages)[: num_rows * pages]
        locs = page_ids.reshape(num_rows, pages, 1) * PAGE_SIZE + np.arange(PAGE_SIZE)
        positions = np.tile(np.arange(pages * PAGE_SIZE, dtype=np.int32), num_rows)
        write = np.repeat(self._rows, pages * PAGE_SIZE), positions, locs.ravel().astype(np.int32)
        self._runner._kv_cache.buffer.normal_()  # noqa: SLF001 # zeros would flatter
        opens = tuple(
            RowOpen(int(row), 1, temperature=0.6, top_k=0, top_p=1, seed=int(row), choice=0)
            for row in self._rows
        )
        ids = rng.integers(0, 151_936, num_rows).astype(np.int32)
        return _plan(self._rows, self._cached, ids, opens=opens, write=write)


def _kind(name: str) -> str:
    for kind, parts in (("attention", ATTENTION), ("gemm", GEMM)):
        if any(part in name for part in parts):
            return kind
    return "rest"


def _plan(
    rows: Int32Array,
    cached: Int32Array,
    ids: Int32Array | None,
    opens: tuple[RowOpen, ...] = (),
    write: tuple[Int32Array, Int32Array, Int32Array] | None = None,
) -> Plan:
    nothing = np.zeros(0, dtype=np.int32)
    return Plan(
        manager_id="bench",
        plan_id=1,
        acked_plan_id=0,
        reset_rows=False,
        close_rows=nothing,
        open_rows=opens,
        write_rows=nothing if write is None else write[0],
        write_positions=nothing if write is None else write[1],
        write_locs=nothing if write is None else write[2],
        step_rows=rows,
        step_cached_lens=cached,
        step_extend_lens=np.ones(len(rows), dtype=np.int32),
        step_num_literals=np.full(len(rows), ids is not None, dtype=np.int32),
        step_samples=np.ones(len(rows), dtype=np.bool_),
        literal_ids=nothing if ids is None else ids,
    )


if __name__ == "__main__":
    main()
