"""Measures the products of few tokens on this GPU beside cuBLAS, and writes their table anew.

    python -m bench.gpu.linear_sweep --json linear_sweep.json --table tuned_linear.json

`--json` gets every figure, `--table` the winners (shapes that were not measured keep their
entries), both after every shape; after `--seconds` (220) it stops and names what is left. The new
table is copied over kernels/gpu/tuned_linear.json by hand. Without a GPU, and with
TRITON_INTERPRET=1, it runs tiny shapes, which measures nothing but shows that it works.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import triton

from bench.gpu.case import DTYPE, ON_GPU, random
from bench.gpu.linear_cases import SHAPES, TINY, Layers, Shape, weights_of
from bench.gpu.results import commit
from bench.gpu.timing import time_calls
from kernels.gpu.linear_tuning import TABLE, LinearConfig

TOKENS = (1, 2, 4, 8, 16)
SHARED_BYTES = 232_448  # shared memory that one program may have
THREAD_BYTES = {True: 128, False: 256}  # of a tile, one token or more: more would spill
ERROR_BOUND = 1e-2
UNUSABLE = (triton.runtime.errors.OutOfResources, triton.CompilationError, RuntimeError)


def configs_of(shape: Shape, *, single: bool) -> list[LinearConfig]:
    """Those worth trying: tiles that fit, of 16 bytes a thread or more, for programs enough."""
    rows = shape.num_rows // (2 if shape.gated else 1)
    return [
        config
        for config in (_SINGLE if single else _MORE)
        if _fits(config, shape, single=single)
        and (config.tile_rows <= (1 if single else 8) or rows >= 128 * config.tile_rows // 2)
        and (config.tile_rows >= (2 if single else 16) or rows <= 20_000)
    ]


_SINGLE = [
    LinearConfig(tile_rows, tile_columns, num_warps, num_stages)
    for tile_rows, tile_columns, num_warps in (
        (1, 512, 2), (1, 1024, 4), (1, 1024, 2), (2, 512, 2), (2, 1024, 4), (2, 1024, 8),
        (4, 512, 4), (4, 1024, 8), (8, 512, 8),
    )
    for num_stages in (1, 4)
]  # fmt: skip
_MORE = [
    LinearConfig(*tile)
    for tile in (
        (8, 256, 4, 4), (8, 512, 8, 3), (8, 1024, 8, 2), (16, 256, 4, 4), (16, 256, 4, 6),
        (16, 512, 4, 3), (16, 512, 8, 3), (16, 1024, 8, 2), (32, 256, 4, 4), (32, 512, 8, 3),
        (32, 256, 8, 4), (64, 128, 4, 5),
    )
]  # fmt: skip


def _fits(config: LinearConfig, shape: Shape, *, single: bool) -> bool:
    rows = config.tile_rows * (2 if shape.gated else 1)
    a_thread = rows * config.tile_columns * DTYPE.itemsize / (32 * config.num_warps)
    tokens = 1 if single else 16
    shared = (rows + tokens) * config.tile_columns * config.num_stages * DTYPE.itemsize
    one_tile = config.tile_columns >= 2 * shape.num_columns  # mostly masked
    pointless = single and config.num_stages > 1 and config.tile_columns >= shape.num_columns
    return (
        a_thread <= THREAD_BYTES[single]
        and shared < SHARED_BYTES
        and not one_tile
        and not pointless
    )


def measure(shape: Shape, deadline: float, failed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A figure for each number of tokens and each config that runs and is right."""
    weights = weights_of(shape)
    figures = []
    for num_tokens in TOKENS if ON_GPU else (1, 2):
        layers = Layers(shape, num_tokens, weights)
        cublas_us = time_calls(layers.cublas())
        for config in configs_of(shape, single=num_tokens == 1):
            if time.monotonic() > deadline:
                raise TimeoutError
            case = {**asdict(shape), "gated": shape.gated, "num_tokens": num_tokens}
            try:
                us, error = time_calls(layers.skinny(config)), layers.error(config)
                why = None if error <= ERROR_BOUND else f"is {error:.2e} away from cuBLAS"
            except UNUSABLE as refusal:
                why = repr(refusal)
            if why is not None:
                failed.append({**case, "config": asdict(config), "why": why})
                continue
            rounded = {"us": round(us, 3), "cublas_us": round(cublas_us, 3)}
            figures.append({**case, **rounded, "config": asdict(config)})
    return figures


def winners(figures: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The fastest figure of each shape and number of tokens."""
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for figure in figures:
        names = ("num_rows", "num_columns", "gated", "num_tokens")
        key = tuple(figure[name] for name in names)
        if key not in best or figure["us"] < best[key]["us"]:
            best[key] = figure
    yield from best.values()


def new_table(figures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The measured shapes' winners, and what the present table has of others."""
    shape = ("num_rows", "num_columns", "gated")
    entries = [
        {
            **{name: figure[name] for name in shape},
            "max_tokens": figure["num_tokens"],
            "used": figure["us"] < figure["cublas_us"],
            **figure["config"],
        }
        for figure in winners(figures)
    ]
    measured = {tuple(entry[name] for name in shape) for entry in entries}
    kept = json.loads(TABLE.read_text(encoding="utf-8"))
    entries += [e for e in kept if tuple(e[name] for name in shape) not in measured]
    return sorted(entries, key=lambda e: (*(e[name] for name in shape), e["max_tokens"]))


def compile_ahead(job: tuple[Shape, bool, LinearConfig]) -> None:
    """In a process of its own: runs a config on few rows, which fills Triton's disk cache."""
    shape, single, config = job
    few = Shape("few", 256, shape.num_columns, shape.form)
    layers = Layers(few, 1 if single else 2, [random(few.num_rows, few.num_columns)])
    with contextlib.suppress(*UNUSABLE):  # the sweep records it
        layers.error(config)


def jobs() -> list[tuple[Shape, bool, LinearConfig]]:
    """What is compiled, once each: the number of rows is no constant of a kernel."""
    distinct = {
        (shape.num_columns, shape.form, single, config): (shape, single, config)
        for shape in SHAPES
        for single in (True, False)
        for config in configs_of(shape, single=single)
    }
    return list(distinct.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    out = Path(os.environ.get("OUT", "."))
    parser.add_argument("--json", type=Path, default=out / "linear_sweep.json")
    parser.add_argument("--table", type=Path, default=out / "tuned_linear.json")
    parser.add_argument("--seconds", type=float, default=220)
    arguments = parser.parse_args()
    began = time.monotonic()
    if ON_GPU:
        single = jobs()
        with ProcessPoolExecutor(
            max(1, (os.cpu_count() or 2) - 2), mp_context=get_context("spawn")
        ) as processes:
            list(processes.map(compile_ahead, single))
        print(f"compiled {len(single)} kernels in {time.monotonic() - began:.0f} s", flush=True)
    results: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "commit": commit(),
        "card": torch.cuda.get_device_name() if ON_GPU else "none",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "figures": [],
        "failed": [],
        "unfinished": [],
    }
    shapes = SHAPES if ON_GPU else TINY
    print(f"{'weight':22}{'N x K':>16}{'tokens':>8}{'us':>9}{'cuBLAS':>9}{'GB/s':>8}  config")
    for number, shape in enumerate(shapes):
        try:
            figures = measure(shape, began + arguments.seconds, results["failed"])
        except TimeoutError:
            results["unfinished"] = [later.name for later in shapes[number:]]
            break
        results["figures"] += figures
        for figure in winners(figures):
            print_row(shape, figure)
        write(arguments.json, results)
        write(arguments.table, new_table(results["figures"]))
    write(arguments.json, results)
    for failure in results["failed"]:
        print("failed:", failure)
    print(f"{time.monotonic() - began:.0f} s; unfinished: {results['unfinished']}")


def print_row(shape: Shape, figure: dict[str, Any]) -> None:
    weight = f"{shape.name:22}{f'{shape.num_rows} x {shape.num_columns}':>16}"
    us, cublas_us = figure["us"], figure["cublas_us"]
    rate = shape.num_bytes / us / 1e3
    print(
        f"{weight}{figure['num_tokens']:8}{us:9.2f}{cublas_us:9.2f}{rate:8.0f}  "
        f"{tuple(figure['config'].values())}",
        flush=True,
    )


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
