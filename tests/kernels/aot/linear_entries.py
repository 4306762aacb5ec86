"""Products of few tokens with the shipped configs, at the shapes that were measured; and exact ones
of float32.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernels.gpu import linear_tuning
from kernels.gpu.linear_tuning import LinearConfig, linear_config
from kernels.gpu.skinny_linear import skinny_linear
from tests.kernels.aot.entry import Entry, Needs

HIDDEN = {576, 1024, 4096, 5120}  # what the norm comes before, and the residual after
KERNELS = {True: "multiply_kernel", False: "dot_kernel"}  # by whether there is one token


def entries() -> Iterator[Entry]:
    distinct = {
        (tuned.max_tokens == 1, tuned.num_columns, form, tuned.config)
        for tuned in linear_tuning.load()
        for form in forms(tuned)
    }
    for single, num_columns, form, config in sorted(distinct, key=repr):
        yield linear_entry(num_columns, form, torch.bfloat16, config, single=single)
    for single in (True, False):
        for form in ("norm gated", "add"):
            exact = linear_config(1 if single else 2, 6144, 1024, torch.float32, gated=True)
            yield linear_entry(1024, form, torch.float32, exact, single=single)


def forms(tuned: linear_tuning.Tuned) -> Iterator[str]:
    """What a layer needs of a weight of that shape."""
    if tuned.gated:
        yield "norm gated"
    else:
        if tuned.num_columns in HIDDEN:
            yield "norm"
        if tuned.num_rows in HIDDEN:
            yield "add"


def linear_entry(
    num_columns: int, form: str, dtype: torch.dtype, config: LinearConfig, *, single: bool
) -> Entry:
    def launch() -> None:
        x = torch.zeros(1 if single else 2, num_columns, dtype=dtype)
        weight = torch.zeros(64, num_columns, dtype=dtype)
        skinny_linear(
            x, weight, norm=x[0] if "norm" in form else None, eps=1e-6, gated="gated" in form,
            add=torch.zeros(len(x), 64, dtype=dtype) if "add" in form else None, config=config,
        )  # fmt: skip

    tile = f"{config.tile_rows}x{config.tile_columns}"
    name = f"{form} of {num_columns} by {tile} {str(dtype)[6:]}"
    return Entry(name, launch, {KERNELS[single]: needs(num_columns, config, single=single)})


def needs(num_columns: int, config: LinearConfig, *, single: bool) -> Needs:
    """The weight comes by 16 bytes: its first tile to registers where there is one token."""
    many = num_columns > config.tile_columns * (2 if single else 1) and config.num_stages > 1
    return Needs(wide=single or not many, async_copies=many)
