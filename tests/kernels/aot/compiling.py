"""Compiling what a wrapper would launch, for a card that is not here.

A wrapper is called with small tensors of the CPU. Triton finds a driver that only names its target,
so each launch is specialised and compiled as on the card, and then not made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

TARGET = GPUTarget("cuda", 90, 32)  # an H100 or H200


class AbsentCard:
    """As much of a driver as a compilation asks for."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device


def compiled_by(launch: Callable[[], object]) -> list[tuple[JITFunction[Any], Any]]:
    """Each kernel that `launch` would start, in that order, and what became of it."""
    compiled: list[tuple[JITFunction[Any], Any]] = []
    run = JITFunction.run

    def compile_only(kernel: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any):
        result = run(kernel, *args, grid=grid, warmup=True, **kwargs)
        compiled.append((kernel, result))
        return result

    with _absent_card():
        JITFunction.run = compile_only
        try:
            launch()
        finally:
            JITFunction.run = run
    return compiled


@contextmanager
def _absent_card() -> Iterator[None]:
    assert not triton.knobs.runtime.interpret, "unset TRITON_INTERPRET: nothing compiles with it"
    driver.set_active(AbsentCard())
    try:
        yield
    finally:
        driver._active = None
