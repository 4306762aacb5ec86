"""What ptxas made of a kernel, read from its cubin with the tools that Triton ships."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import triton

TOOL = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
OPCODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)


@dataclass(frozen=True)
class MachineCode:
    """Registers a thread, bytes of memory, and how many instructions there are of a kind."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    local_accesses: int  # spilled registers, loads and stores
    wide_loads: int  # of 16 bytes, straight to registers
    wide_stores: int
    async_copies: int  # of 16 bytes, to shared memory
    bulk_copies: int  # by the tensor memory accelerator
    warpgroup_products: int  # HGMMA


def machine_code(cubin: bytes, *, shared_bytes: int) -> MachineCode:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [TOOL, "-res-usage", "-sass", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack_bytes = re.search(r"REG:(\d+) STACK:(\d+)", text).groups()
    opcodes = Counter(OPCODE.findall(text))

    def count(pattern: str) -> int:
        return sum(n for opcode, n in opcodes.items() if re.match(pattern, opcode))

    return MachineCode(
        registers=int(registers),
        stack_bytes=int(stack_bytes),
        shared_bytes=shared_bytes,
        local_accesses=count(r"(LDL|STL)\b"),
        wide_loads=count(r"LDG\b.*\.128"),
        wide_stores=count(r"STG\b.*\.128"),
        async_copies=count(r"LDGSTS\b.*\.128"),
        bulk_copies=count(r"UTMALDG\b"),
        warpgroup_products=count(r"HGMMA\b"),
    )
