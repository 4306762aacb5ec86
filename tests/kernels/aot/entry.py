"""What is compiled ahead of time, and what its machine code must have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.kernels.aot.machine_code import MachineCode


@dataclass(frozen=True)
class Needs:
    """What one kernel needs, beside keeping everything in registers."""

    max_registers: int = 255
    wide: bool = False  # global memory is read or written by 16 bytes a thread
    async_copies: bool = False  # shared memory is filled by 16 bytes a thread, in the background
    warpgroup_products: bool = False

    def unmet(self, code: MachineCode) -> list[str]:
        """What `code` lacks, in words."""
        found = {
            f"it keeps {code.stack_bytes} bytes on the stack": code.stack_bytes > 0,
            f"it spills: {code.local_accesses} local accesses": code.local_accesses > 0,
            f"{code.registers} registers, at most {self.max_registers} were allowed": (
                code.registers > self.max_registers
            ),
            "no load or store of 16 bytes": self.wide and code.wide_loads + code.wide_stores == 0,
            "no asynchronous copy of 16 bytes": (
                self.async_copies and code.async_copies + code.bulk_copies == 0
            ),
            "no HGMMA": self.warpgroup_products and code.warpgroup_products == 0,
        }
        return [words for words, is_so in found.items() if is_so]


@dataclass(frozen=True)
class Entry:
    """`launch` calls a wrapper with tensors of the CPU; `needs` is by the name of the kernel.

    Every kernel named must be launched; one that is launched and not named needs no more than all.
    """

    name: str
    launch: Callable[[], object]
    needs: Mapping[str, Needs] = field(default_factory=dict)
