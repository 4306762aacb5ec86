"""What products of few tokens are measured with: weights of models, and cuBLAS beside the kernel.

cuBLAS is F.linear or addmm, with the kernels for norm and gate before and after it. Weights go
around, so that none is in the L2 cache when it is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from bench.gpu.case import DTYPE, ON_GPU, Call, Case, random
from kernels.gpu.linear_tuning import LinearConfig
from kernels.gpu.rms_norm import rms_norm
from kernels.gpu.silu_mul import silu_mul
from kernels.gpu.skinny_linear import skinny_linear

COLD_BYTES = 240e6  # of weights that go around: four times what the card caches
MAX_CALLS = 128  # the smallest weight is then half as large again as the cache
EPS = 1e-6


@dataclass(frozen=True)
class Shape:
    """A weight [num_rows, num_columns] of a model, and what is fused with it."""

    name: str
    num_rows: int
    num_columns: int
    form: str  # "norm", "norm gated" or "add"

    @property
    def gated(self) -> bool:
        return "gated" in self.form

    @property
    def num_bytes(self) -> int:
        return self.num_rows * self.num_columns * DTYPE.itemsize


def of_model(
    model: str, hidden: int, qkv: int, attended: int, inner: int, vocab: int
) -> tuple[Shape, ...]:
    return (
        Shape(f"{model} qkv", qkv, hidden, "norm"),
        Shape(f"{model} o", hidden, attended, "add"),
        Shape(f"{model} gate_up", 2 * inner, hidden, "norm gated"),
        Shape(f"{model} down", hidden, inner, "add"),
        Shape(f"{model} head", vocab, hidden, "norm"),
    )


GOALS = (  # the models that goals are set for
    *of_model("Qwen3-0.6B", 1024, 4096, 2048, 3072, 151_936),
    *of_model("Llama-3.1-8B", 4096, 6144, 4096, 14336, 128_256),
    *of_model("Qwen3-14B", 5120, 7168, 5120, 17408, 151_936),
)
SHAPES = (
    *GOALS,
    *of_model("SmolLM2-135M", 576, 960, 576, 1536, 49_152),
)
TINY = (Shape("tiny gate_up", 128, 512, "norm gated"), Shape("tiny down", 64, 512, "add"))


class Layers:
    """A shape's weights, as many as go past the cache, and tokens for them."""

    def __init__(self, shape: Shape, num_tokens: int, weights: list[Tensor]) -> None:
        self._shape, self._weights = shape, weights
        self._x = random(num_tokens, shape.num_columns)
        self._norm = random(shape.num_columns) if "norm" in shape.form else None
        self._residual = random(num_tokens, shape.num_rows) if shape.form == "add" else None

    def skinny(self, config: LinearConfig | None = None) -> list[Call]:
        """A call for each weight, of the tuned config unless one is given."""
        return [partial(self._skinny, weight, config) for weight in self._weights]

    def cublas(self) -> list[Call]:
        return [partial(self._cublas, weight) for weight in self._weights]

    def error(self, config: LinearConfig | None = None) -> float:
        """How far the two are from each other, by root mean squares."""
        results = []
        for product in (lambda w: self._skinny(w, config), self._cublas):
            if self._residual is not None:
                self._residual.fill_(1)  # timing has piled products up in it
            results.append(product(self._weights[0]).double())
        out, expected = results
        return float((out - expected).norm() / expected.norm())

    def _skinny(self, weight: Tensor, config: LinearConfig | None) -> Tensor:
        return skinny_linear(
            self._x, weight, norm=self._norm, eps=EPS, gated=self._shape.gated,
            add=self._residual, config=config,
        )  # fmt: skip

    def _cublas(self, weight: Tensor) -> Tensor:
        if self._residual is not None:
            return self._residual.addmm_(self._x, weight.T)
        assert self._norm is not None
        product = F.linear(rms_norm(self._x, self._norm, EPS), weight)
        return silu_mul(product) if self._shape.gated else product


def weights_of(shape: Shape) -> list[Tensor]:
    """Scaled so that a product added again and again stays in range."""
    count = max(1, min(MAX_CALLS, math.ceil(COLD_BYTES / shape.num_bytes))) if ON_GPU else 1
    return [
        random(shape.num_rows, shape.num_columns).mul_(shape.num_columns**-0.5)
        for _ in range(count)
    ]


def linear_cases() -> Iterator[Case]:
    for shape in GOALS if ON_GPU else TINY:
        weights = weights_of(shape)
        for num_tokens in (1, 8):
            yield linear_case(shape, num_tokens, weights)


def linear_case(shape: Shape, num_tokens: int, weights: list[Tensor]) -> Case:
    """Of the kernel even where the table has cuBLAS serve, as at 8 tokens often."""
    layers = Layers(shape, num_tokens, weights)
    tokens = "token" if num_tokens == 1 else "tokens"
    return Case(
        "skinny_linear",
        f"{shape.name} {shape.num_rows} x {shape.num_columns}, {num_tokens} {tokens}",
        shape.num_bytes,
        layers.skinny(),
        layers.cublas(),
        reads_only=True,
    )
