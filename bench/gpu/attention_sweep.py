"""Measures the attention kernels' configs on this GPU, and writes the tuning table anew.

    python -m bench.gpu.attention_sweep [--few] [--seconds 210] [--out DIRECTORY]

Writes attention_sweep.json (every figure) and tuned_attention.json (the winners; shapes and batches
that were not measured keep theirs) into DIRECTORY, by default $OUT, else bench/results, after every
shape. `--few` measures decode of few rows alone. The new table is copied over
kernels/gpu/tuned_attention.json by hand. Without a GPU, and with TRITON_INTERPRET=1, it runs a few
tiny cases, which measures nothing but shows that it works.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import triton

from bench.gpu import attention_cases as cases
from bench.gpu.attention_cases import Load, Shape, World
from bench.gpu.attention_table import new_table, winners_of
from bench.gpu.case import DEVICE, DTYPE, ON_GPU, Call
from bench.gpu.timing import copy_gbps, read_us, time_calls
from kernels.gpu.attention_tuning import DecodeConfig, PrefillConfig
from kernels.gpu.decode_plan import empty_plan, plan_decode

PAGE_SIZE = 16
POOL_BYTES = 10e9
ERROR_BOUND = 1e-2
UNUSABLE = (triton.runtime.errors.OutOfResources, triton.CompilationError, RuntimeError)


class OutOfTimeError(Exception):
    """The seconds that were given are over."""


class Sweep:
    """The figures so far, on disk after every shape."""

    def __init__(self, directory: Path, deadline: float) -> None:
        self._directory, self._deadline = directory, deadline
        elements = int(POOL_BYTES / 2) if ON_GPU else 1 << 20
        self._pool = torch.empty(elements, dtype=DTYPE, device=DEVICE).normal_()
        self.figures: dict[str, Any] = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
            "device": torch.cuda.get_device_name() if ON_GPU else "interpreter",
            "torch": torch.__version__,
            "triton": triton.__version__,
            "page_size": PAGE_SIZE,
            "copy_gbps": copy_gbps(self._pool),
            "read_gbps": self._pool.nbytes / read_us(self._pool.nbytes, self._pool) / 1e3,
            "decode": [],
            "prefill": [],
            "pages": [],
            "failed": [],
            "unfinished": [],
        }

    def decode(self, shape: Shape, loads: list[Load], configs: list[DecodeConfig]) -> None:
        for load in loads:
            world = World(shape, load, self._pool, page_size=PAGE_SIZE)
            floor_us = read_us(world.kv_bytes, self._pool)
            may_be_early = len(load.lens) <= cases.MAX_EARLY_ROWS
            for config in configs if may_be_early else [c for c in configs if not c.early_tile]:
                known_right = False
                for workers_per_sm in cases.WORKERS_PER_SM if ON_GPU else (1,):
                    chosen = replace(config, workers_per_sm=workers_per_sm)
                    us = self._time_decode(world, chosen, check=not known_right)
                    known_right = True
                    if us is None:
                        break
                    gbps = world.kv_bytes / us / 1e3
                    self._add("decode", shape, load, chosen, us=us, gbps=gbps, read_us=floor_us)
        self.write()

    def prefill(self, shape: Shape, loads: list[Load], configs: list[PrefillConfig]) -> None:
        for load in loads:
            world = World(shape, load, self._pool, page_size=PAGE_SIZE, max_layers=4)
            for config in configs:
                self._check_time()
                plan = world.plan(config)
                us = self._time(world, config, world.prefill(plan), check=True)
                if us is not None:
                    tflops = world.flops / us / 1e6
                    self._add("prefill", shape, load, config, us=us, tflops=tflops)
        self.write()

    def pages(self, shape: Shape, loads: list[Load], configs: list[DecodeConfig]) -> None:
        """The same load at several page sizes, with and without reading one loc a page."""
        for load in loads:
            for page_size in (1, 16, 64, 128):
                world = World(shape, load, self._pool, page_size=page_size)
                for config in configs:
                    for page_tiles in {False, page_size % config.tile_len == 0}:
                        chosen = replace(config, page_tiles=page_tiles)
                        us = self._time_decode(world, chosen, check=True)
                        if us is not None:
                            self._add("pages", shape, load, chosen, us=us, page_size=page_size)
        self.write()

    def plan_us(self) -> dict[str, float]:
        """Microseconds of a decode plan, by batch: once a step, whatever the number of layers."""
        found = {}
        for num_reqs in (1, 64, 256) if ON_GPU else (2,):
            load = Load(f"{num_reqs} rows", (40,) * num_reqs)
            world = World(cases.SHAPES[0], load, self._pool, page_size=PAGE_SIZE, max_layers=1)
            workspace = world.workspace(DecodeConfig(64, 4, 3, workers_per_sm=3))
            plan_step = partial(workspace.plan_step, world.table_idxs, world.lens)
            found[load.name] = time_calls([plan_step] * 20)
        return found

    def best_decode(self, shape: Shape) -> list[DecodeConfig]:
        """The winners for the shape's batches, without repeats."""
        winners = winners_of(self.figures["decode"], shape)
        return list(dict.fromkeys(DecodeConfig(**row["config"]) for row in winners.values()))

    def write(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.figures, indent=1) + "\n"
        (self._directory / "attention_sweep.json").write_text(text)
        if self.figures["decode"]:
            table = json.dumps(new_table(self.figures), indent=2) + "\n"
            (self._directory / "tuned_attention.json").write_text(table)

    def _time_decode(self, world: World, config: DecodeConfig, *, check: bool) -> float | None:
        self._check_time()
        workspace = world.workspace(config)
        workspace.plan_step(world.table_idxs, world.lens)
        return self._time(world, config, world.decode(workspace), check=check)

    def _time(self, world: World, config: Any, layers: list[Call], *, check: bool) -> float | None:
        """Microseconds a layer; None, with a record of why, where it cannot run or is wrong."""
        try:
            world.out.fill_(math.nan)
            us = time_calls(layers)
            error = world.error() if check else 0.0
        except UNUSABLE as refusal:
            self._fail(world, config, repr(refusal))
            return None
        if not error <= ERROR_BOUND:
            self._fail(world, config, f"is {error:.2e} away from float64")
            return None
        return us

    def _fail(self, world: World, config: Any, why: str) -> None:
        failure = {**asdict(world.shape), "load": world.load.name, "why": why}
        self.figures["failed"].append({**failure, "config": asdict(config)})

    def _add(self, section: str, shape: Shape, load: Load, config: Any, **figures: float) -> None:
        rounded = {name: round(figure, 3) for name, figure in figures.items()}
        row = {**asdict(shape), "load": load.name, "num_reqs": len(load.lens), **rounded}
        self.figures[section].append({**row, "config": asdict(config)})

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise OutOfTimeError


def jobs(*, few: bool) -> Iterator[tuple[str, Shape, list[Any]]]:
    """What to measure, the most important first; `few`: decode alone."""
    first, *others = cases.SHAPES
    if few:
        for shape in cases.SHAPES:
            yield "decode", shape, cases.decode_configs(shape, few=True)
        return
    yield "decode", first, cases.decode_configs(first, few=False)
    yield "prefill", first, cases.prefill_configs(first)
    for shape in others:
        yield "decode", shape, cases.decode_configs(shape, few=True)
        yield "prefill", shape, cases.prefill_configs(shape)


def compile_ahead(job: tuple[str, Shape, Any]) -> None:
    """In a process of its own: runs a config on almost nothing, which fills Triton's disk cache.

    The config of a "plan" is its tile_len.
    """
    kind, shape, config = job
    pool = torch.zeros(1 << 22, dtype=DTYPE, device="cuda")
    try:
        if kind == "plan":
            for num_reqs in cases.BATCHES:
                rows = torch.ones(num_reqs, dtype=torch.int32, device="cuda")
                plan = empty_plan(num_reqs, 4, "cuda")
                plan_decode(plan, rows, rows, tile_len=config)
        elif kind == "decode":
            world = World(shape, Load("tiny", (40, 70)), pool, page_size=PAGE_SIZE, max_layers=1)
            workspace = world.workspace(config)
            workspace.plan_step(world.table_idxs, world.lens)
            torch.cuda.synchronize()
            world.decode(workspace)[0]()
        else:
            load = Load("tiny", (40, 70), (0, 5))
            world = World(shape, load, pool, page_size=PAGE_SIZE, max_layers=1)
            world.prefill(world.plan(config))[0]()
        torch.cuda.synchronize()
    except UNUSABLE:
        pass  # the sweep records it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--few", action="store_true", help="decode of few rows alone")
    parser.add_argument("--seconds", type=float, default=210)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "bench/results")))
    arguments = parser.parse_args()
    began = time.monotonic()
    wanted = list(jobs(few=arguments.few))
    if ON_GPU:
        single = [("plan", cases.SHAPES[0], tile_len) for tile_len in (32, 64, 128)]
        single += [(kind, shape, config) for kind, shape, configs in wanted for config in configs]
        with ProcessPoolExecutor(
            max(1, (os.cpu_count() or 2) - 2), mp_context=get_context("spawn")
        ) as processes:
            list(processes.map(compile_ahead, single))
        print(f"compiled {len(single)} configs in {time.monotonic() - began:.0f} s", flush=True)
    sweep = Sweep(arguments.out, began + arguments.seconds)
    sweep.figures["plan_us"] = sweep.plan_us()
    sweep_all(sweep, wanted, began, few=arguments.few)
    sweep.write()
    print_winners(sweep.figures)


def sweep_all(
    sweep: Sweep, wanted: list[tuple[str, Shape, list[Any]]], began: float, *, few: bool
) -> None:
    """Every job until time is over; what is left is named in the figures."""
    tiny = [Load("2 rows", (40, 20))], [Load("2 rows", (40, 20), (0, 4))]
    for number, (kind, shape, configs) in enumerate(wanted):
        full = number < 2 and not few
        try:
            if kind == "decode":
                loads = cases.DECODE_LOADS if full else cases.FEW_DECODE_LOADS
                if few:
                    loads = cases.FEW_ROWS_LOADS
                sweep.decode(shape, list(loads) if ON_GPU else tiny[0], configs)
                if full:
                    at = list(cases.DECODE_LOADS[:3]) if ON_GPU else tiny[0]
                    sweep.pages(shape, at, sweep.best_decode(shape)[:4])
            else:
                sweep.prefill(shape, list(cases.PREFILL_LOADS) if ON_GPU else tiny[1], configs)
        except OutOfTimeError:
            left = [{"kind": k, **asdict(s)} for k, s, _ in wanted[number:]]
            sweep.figures["unfinished"] = left
            return
        print(f"{time.monotonic() - began:4.0f} s  {kind} {shape}", flush=True)
        if not ON_GPU and number == 1:
            return


def print_winners(figures: dict[str, Any]) -> None:
    """The best of each shape and load, beside a plain read of the same bytes."""
    print({name: figures[name] for name in ("copy_gbps", "read_gbps", "plan_us")})
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for section in ("decode", "prefill"):
        for row in figures[section]:
            key = section, row["head_dim"], row["num_heads"], row["num_kv_heads"], row["load"]
            if key not in best or row["us"] < best[key]["us"]:
                best[key] = row
    for key, row in best.items():
        rates = {name: row[name] for name in ("us", "read_us", "gbps", "tflops") if name in row}
        print(*key, rates, {k: v for k, v in row["config"].items() if k != "page_tiles"})
    for failure in figures["failed"]:
        print("failed:", failure)
    print("unfinished:", figures["unfinished"])


if __name__ == "__main__":
    main()
