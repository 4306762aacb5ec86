"""Every kernel but attention against its floor, torch, and for the store a plain copy.

    python -m bench.gpu.kernels [--only NAME] [--sweep] [--json PATH]

The floor is the bytes that a call must move, at the read or copy bandwidth of the same run. Calls
run in a CUDA graph, over buffers of random numbers that together are larger than the L2 cache where
one call's own are large. Writes the `kernels` of bench/results/h200.json. `--sweep` also tries the
constants of the store and of the sampler, and writes nothing of that.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from bench.gpu.elementwise_cases import (
    DEVICE,
    ON_GPU,
    TOKENS,
    Call,
    Case,
    elementwise_cases,
    store_case,
)
from bench.gpu.results import H200, record_kernels
from bench.gpu.sampler_cases import flat, sample_case, sampler_cases, sharp
from bench.gpu.timing import copy_gbps, read_us, time_us
from kernels.gpu import kv_store, sampling

LARGE_BYTES = 4 << 30 if ON_GPU else 1 << 20
HEADINGS = ("us", "GB/s", "floor us", "of floor", "torch us", "copy us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="kernels whose name has this")
    parser.add_argument("--sweep", action="store_true", help="try constants too")
    parser.add_argument("--json", type=Path, default=H200, help="where the figures go")
    args = parser.parse_args()
    ceilings = measure_ceilings()
    print(", ".join(f"{name} {gbps:.0f}" for name, gbps in ceilings.items()))
    print(f"{'kernel':22}{'shape':34}" + "".join(f"{heading:>10}" for heading in HEADINGS))
    entries = [
        measure(case, ceilings)
        for cases in (elementwise_cases(), sampler_cases())
        for case in cases
        if args.only in case.name
    ]
    record_kernels(args.json, ceilings, entries)
    if args.sweep:
        sweep(ceilings)


def measure_ceilings() -> dict[str, float]:
    memory = torch.randint(2**31 - 1, (LARGE_BYTES // 4,), dtype=torch.int32, device=DEVICE)
    half = LARGE_BYTES // 2
    programs = 132 * 8 if ON_GPU else 4
    return {
        "read_gbps": half / read_us(half, memory, programs) / 1e3,
        "copy_gbps": copy_gbps(memory),
    }


def measure(case: Case, ceilings: dict[str, float]) -> dict[str, Any]:
    """One entry of `kernels`; prints it."""
    us = timed(case.ours)
    torch_us, copy_us = (timed_if_it_can(calls) for calls in (case.plain, case.copies))
    gbps = case.num_bytes / us / 1e3
    floor_us = case.num_bytes / ceilings["read_gbps" if case.reads_only else "copy_gbps"] / 1e3
    figures = (us, gbps, floor_us, us / floor_us, torch_us, copy_us)
    columns = "".join(f"{'-' if x is None else format(x, '.2f'):>10}" for x in figures)
    print(f"{case.name:22}{case.shape:34}{columns}", flush=True)
    entry = {"us": us, "gbps": gbps, "floor_us": floor_us, "torch_us": torch_us, "copy_us": copy_us}
    rounded = {name: round(x, 3) for name, x in entry.items() if x is not None}
    return {"name": case.name, "shape": case.shape, **rounded}


def timed(calls: list[Call]) -> float:
    return time_us(lambda: [call() for call in calls], calls=len(calls))


def timed_if_it_can(calls: list[Call]) -> float | None:
    """None too where torch has something that no CUDA graph can hold."""
    try:
        return timed(calls) if calls else None
    except RuntimeError as error:
        print(f"  not timed: {str(error).splitlines()[0]}")
        return None


def sweep(ceilings: dict[str, float]) -> None:
    """Other constants of the store and of the sampler, in this process alone."""
    kv_store.FEW_TOKENS = 0
    for tokens in (1, 2, 4, 8):
        kv_store.TOKENS_OF_MANY = tokens
        print(f"store: TOKENS_OF_MANY {tokens}")
        for num_tokens in TOKENS:
            measure(store_case(num_tokens), ceilings)
    logits = {"sharp": sharp, "flat": flat}
    for chunk in (2048, 4096):
        for num_warps in (4, 8, 16):
            sampling.CHUNK, sampling.NUM_WARPS = chunk, num_warps
            print(f"sampler: CHUNK {chunk}, NUM_WARPS {num_warps}")
            for num_rows in (1, 256) if ON_GPU else (2,):
                for kind, shape in (
                    ("temperature", "sharp"),
                    ("top_k", "sharp"),
                    ("top_p", "flat"),
                ):
                    sets = [logits[shape](num_rows) for _ in range(4)]
                    measure(sample_case(kind, shape, sets), ceilings)


if __name__ == "__main__":
    main()
