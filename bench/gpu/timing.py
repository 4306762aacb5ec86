"""Time of device work, as it is in serving: inside a CUDA graph, caches cold, clocks untouched."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

ROUNDS = 5
ROUND_US = 1500.0  # what one round should last at least, so that events resolve it
READ_PROGRAMS = 132 * 8 if torch.cuda.is_available() else 4  # eight for each multiprocessor


def time_us(step: Callable[[], object], *, calls: int) -> float:
    """Microseconds of one of the `calls` that `step` makes: the median over rounds of replays.

    `step` must be able to run in a CUDA graph, and should read more memory than the card caches.
    Without a CUDA device it is run once and timed on the host, which measures nothing but shows
    that it runs.
    """
    if not torch.cuda.is_available():
        began = time.perf_counter()
        step()
        return (time.perf_counter() - began) * 1e6 / calls
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    once = _elapsed_us(graph, 1)
    replays = max(1, min(50, round(ROUND_US / once)))
    return statistics.median(_elapsed_us(graph, replays) for _ in range(ROUNDS)) / calls


def time_calls(calls: Sequence[Callable[[], object]]) -> float:
    """`time_us` of one of `calls`, which are made in turn."""
    return time_us(lambda: [call() for call in calls], calls=len(calls))


def _elapsed_us(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / replays


def read(memory: Tensor, sums: Tensor) -> None:
    """Reads contiguous `memory` of whole 64 KiB pieces once: the yardstick of what only reads.

    `sums` float32 [1 or more] is written, so that the loads are not left out.
    """
    words = memory.view(torch.int32).view(-1)
    programs = len(sums)
    per_program = triton.cdiv(len(words), programs * _TILE)
    _read_kernel[(programs,)](words, sums, len(words), per_program, tile=_TILE, num_warps=8)


_TILE = 4096


@triton.jit
def _read_kernel(words, sums, num_words, per_program, tile: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    within = tl.arange(0, tile)
    total = tl.zeros((tile,), tl.int32)
    for i in range(per_program):
        at = (i * tl.num_programs(0) + program) * tile + within
        total += tl.load(words + at, mask=at < num_words, other=0)
    tl.store(sums + program, tl.sum(total, 0).to(tl.float32))


def read_us(num_bytes: int, memory: Tensor) -> float:
    """The time to read `num_bytes` somewhere in `memory`, which is far larger than any cache."""
    piece = min(max(65536, num_bytes // 65536 * 65536), memory.nbytes)
    calls = max(1, min(32, memory.nbytes // piece))
    sums = torch.zeros(READ_PROGRAMS, device=memory.device)
    pieces = [memory.view(torch.uint8)[i * piece : (i + 1) * piece] for i in range(calls)]

    def step() -> None:
        for part in pieces:
            read(part, sums)

    return time_us(step, calls=calls) * num_bytes / piece


def copy_gbps(memory: Tensor) -> float:
    """Bytes read plus written a second, in units of 1e9, from half of `memory` to half.

    A kernel negates: the copy that a graph makes of `copy_` reached two thirds of that on an H200.
    """
    flat = memory.view(torch.uint8).flatten()
    half = flat.nbytes // 8 * 4
    source, target = flat[:half].view(torch.int32), flat[half : 2 * half].view(torch.int32)
    us = time_us(lambda: torch.neg(source, out=target), calls=1)
    return 2 * half / us / 1e3
