"""The gate of `make aot` refuses what it is for; compiling itself runs there, without pytest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kernels.aot.entry import Needs
from tests.kernels.aot.machine_code import OPCODE, MachineCode

pytestmark = pytest.mark.torch

GOOD = MachineCode(
    registers=96, stack_bytes=0, shared_bytes=1024, local_accesses=0, wide_loads=2, wide_stores=1,
    async_copies=4, bulk_copies=0, warpgroup_products=8,
)  # fmt: skip
ALL = Needs(max_registers=96, wide=True, async_copies=True, warpgroup_products=True)


def test_code_that_has_everything_is_let_through() -> None:
    assert ALL.unmet(GOOD) == []
    assert ALL.unmet(replace(GOOD, async_copies=0, bulk_copies=1, wide_loads=0)) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"stack_bytes": 8}, "stack"),
        ({"local_accesses": 1}, "spills"),
        ({"registers": 97}, "97 registers"),
        ({"wide_loads": 0, "wide_stores": 0}, "16 bytes"),
        ({"async_copies": 0}, "asynchronous"),
        ({"warpgroup_products": 0}, "HGMMA"),
    ],
)
def test_each_lack_is_named(change: dict[str, int], word: str) -> None:
    (sentence,) = ALL.unmet(replace(GOOD, **change))

    assert word in sentence


def test_opcodes_are_read_with_and_without_a_predicate() -> None:
    lines = (
        "        /*0150*/                   LDG.E.128 R4, desc[UR4][R2.64] ;\n"
        "        /*0160*/              @!P0 STL.64 [R1+0x8], R4 ;\n"
        "        /*0170*/             @UP1 UTMALDG.2D [UR8], [UR4] ;\n"
    )

    assert OPCODE.findall(lines) == ["LDG.E.128", "STL.64", "UTMALDG.2D"]
