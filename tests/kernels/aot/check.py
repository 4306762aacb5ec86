"""Compiling the entries, each in whatever process is free."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from tests.kernels.aot import (
    attention_entries,
    elementwise_entries,
    linear_entries,
    sampling_entries,
)
from tests.kernels.aot.compiling import compiled_by
from tests.kernels.aot.entry import Entry, Needs
from tests.kernels.aot.machine_code import MachineCode, machine_code

REGISTRY = (elementwise_entries, sampling_entries, linear_entries, attention_entries)


@dataclass(frozen=True)
class Launched:
    """A kernel that an entry launches, and what is wrong with it, in words."""

    name: str
    hash: str
    code: MachineCode
    unmet: list[str]
    seconds: float


def compile_all() -> Iterator[tuple[Entry, list[Launched]]]:
    """Every entry in turn, and the kernels that it launches."""
    entries = _entries()
    context = multiprocessing.get_context("spawn")  # torch has started threads here
    with ProcessPoolExecutor(os.cpu_count(), context) as pool:
        yield from zip(entries, pool.map(_compile, range(len(entries))), strict=True)


def _entries() -> list[Entry]:
    return [entry for module in REGISTRY for entry in module.entries()]


def _compile(index: int) -> list[Launched]:
    """Compiles what an entry launches; entries hold functions, which do not travel."""
    entry = _entries()[index]
    started = time.perf_counter()
    launches = []
    for function, compiled in compiled_by(entry.launch):
        code = machine_code(compiled.asm["cubin"], shared_bytes=compiled.metadata.shared)
        unmet = entry.needs.get(function.__name__, Needs()).unmet(code)
        seconds = time.perf_counter() - started
        launches.append(Launched(function.__name__, compiled.hash, code, unmet, seconds))
        started += seconds
    return launches
