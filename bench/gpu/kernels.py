"""Every kernel against its floor, torch, and where there is one a plain copy or read.

    python -m bench.gpu.kernels [--only NAME] [--sweep] [--json PATH]

The floor is the bytes that a call must move, at the read or copy bandwidth of the same run; of
prefill attention it is arithmetic, at what matrix products reach. Kernels run as they are shipped:
attention and products of few tokens with their tuned configs. Calls run in a CUDA graph, over
buffers of random numbers that together are larger than the L2 cache where one call's own are large.
Writes the `kernels` of bench/results/h200.json, after each kind. `--sweep` also tries the constants
of the store and of the sampler, and writes nothing of that.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from bench.gpu.attention_goals import decode_cases, prefill_cases
from bench.gpu.case import DEVICE, ON_GPU, Call, Case
from bench.gpu.elementwise_cases import TOKENS, elementwise_cases, store_case
from bench.gpu.limits import MATMUL_FLOPS
from bench.gpu.linear_cases import linear_cases
from bench.gpu.results import H200, record_kernels
from bench.gpu.sampler_cases import flat, sample_case, sampler_cases, sharp
from bench.gpu.step_cases import step_cases
from bench.gpu.timing import copy_gbps, read_us, time_calls
from kernels.gpu import kv_store, sampling

LARGE_BYTES = 4 << 30 if ON_GPU else 1 << 20
KINDS = (
    elementwise_cases, step_cases, decode_cases, prefill_cases, linear_cases, sampler_cases,
)  # fmt: skip
COLUMNS = ("us", "gbps", "tflops", "floor_us", "of floor", "torch_us", "copy_us", "read_us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="kernels whose name has this")
    parser.add_argument("--sweep", action="store_true", help="try constants too")
    parser.add_argument("--json", type=Path, default=H200, help="where the figures go")
    args = parser.parse_args()
    began = time.monotonic()
    ceilings = measure_ceilings()
    print(", ".join(f"{name} {gbps:.0f}" for name, gbps in ceilings.items()))
    print(f"{'kernel':22}{'shape':46}" + "".join(f"{column:>10}" for column in COLUMNS))
    for cases in KINDS:
        entries = [measure(case, ceilings) for case in cases() if args.only in case.name]
        if entries:
            record_kernels(args.json, ceilings, entries)
    print(f"{time.monotonic() - began:.0f} s")
    if args.sweep:
        sweep(ceilings)


def measure_ceilings() -> dict[str, float]:
    memory = torch.randint(2**31 - 1, (LARGE_BYTES // 4,), dtype=torch.int32, device=DEVICE)
    half = LARGE_BYTES // 2
    return {
        "read_gbps": half / read_us(half, memory) / 1e3,
        "copy_gbps": copy_gbps(memory),
    }


def measure(case: Case, ceilings: dict[str, float]) -> dict[str, Any]:
    """One entry of `kernels`; prints it."""
    us = time_calls(case.ours)
    if case.flops:
        rate, floor_us = {"tflops": case.flops / us / 1e6}, case.flops / MATMUL_FLOPS * 1e6
    else:
        ceiling = ceilings["read_gbps" if case.reads_only else "copy_gbps"]
        rate, floor_us = {"gbps": case.num_bytes / us / 1e3}, case.num_bytes / ceiling / 1e3
    others = {"torch_us": case.plain, "copy_us": case.copies, "read_us": case.reads}
    figures = {"us": us, **rate, "floor_us": floor_us, "of floor": us / floor_us}
    for name, calls in others.items():
        other_us = timed_if_it_can(calls)
        if other_us is not None:
            figures[name] = other_us
    columns = (format(figures[name], ".2f") if name in figures else "-" for name in COLUMNS)
    print(f"{case.name:22}{case.shape:46}" + "".join(f"{x:>10}" for x in columns), flush=True)
    kept = {name: round(x, 3) for name, x in figures.items() if name != "of floor"}
    return {"name": case.name, "shape": case.shape, **kept}


def timed_if_it_can(calls: list[Call]) -> float | None:
    """None too where torch has something that no CUDA graph can hold."""
    try:
        return time_calls(calls) if calls else None
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
