"""`make aot`: compiles every kernel for an H200 without one, and refuses what would be slow there.

Prints a line for each distinct kernel. Fails on a spill or a stack, on what an entry's `Needs` say,
and on a kernel of kernels/gpu that no entry launches.
"""

from __future__ import annotations

import pkgutil
import sys
import time
from importlib import import_module

import triton
from triton.runtime.jit import JITFunction

import kernels.gpu
from tests.kernels.aot.check import compile_all
from tests.kernels.aot.machine_code import MachineCode

HEADINGS = ("registers", "shared", "loads", "stores", "async", "HGMMA", "s")


def main() -> int:
    print(f"triton {triton.__version__}, sm_90; loads, stores and async of 16 bytes")
    print(f"{'entry: kernel':54}" + "".join(f"{heading:>10}" for heading in HEADINGS), flush=True)
    started = time.perf_counter()
    failures: list[str] = []
    names: set[str] = set()
    seen: set[str] = set()
    for entry, launches in compile_all():
        missing = entry.needs.keys() - {kernel.name for kernel in launches}
        failures += [f"{entry.name}: {name} was not launched" for name in missing]
        for kernel in launches:
            names.add(kernel.name)
            if kernel.hash in seen:
                continue
            seen.add(kernel.hash)
            title = f"{entry.name}: {kernel.name}"
            print(f"{title:54}{_figures(kernel.code)}{kernel.seconds:10.1f}", flush=True)
            failures += [f"{title}: {words}" for words in kernel.unmet]
    failures += [
        f"{name} is launched by no entry of tests/kernels/aot"
        for name in sorted(_kernel_names() - names)
    ]
    print(f"{len(seen)} kernels in {time.perf_counter() - started:.0f} s, {len(failures)} failures")
    for failure in failures:
        print(f"make aot: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _kernel_names() -> set[str]:
    """Every kernel of kernels/gpu that is launched from Python: those named `*_kernel`."""
    modules = [
        import_module(f"kernels.gpu.{module.name}")
        for module in pkgutil.iter_modules(kernels.gpu.__path__)
    ]
    return {
        name
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, JITFunction) and name.endswith("_kernel")
    }


def _figures(code: MachineCode) -> str:
    """The columns of HEADINGS but the last."""
    columns = (
        code.registers, code.shared_bytes, code.wide_loads, code.wide_stores,
        code.async_copies + code.bulk_copies, code.warpgroup_products,
    )  # fmt: skip
    return "".join(f"{column:10}" for column in columns)


if __name__ == "__main__":
    sys.exit(main())
