"""Weights of no checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from runnersvc.families import ModelSpec
from runnersvc.weights import (
    LayerWeights,
    ModelWeights,
    every_layer,
    expected_shapes,
    outside_layers,
)


class DummyWeights:
    """Random weights in the shapes of `spec`, the same ones each time: for measuring speed, where
    no token matters. Norms are 1, all else is normal with a deviation of 0.02.
    """

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> None:
        self._spec, self._dtype, self._device = spec, dtype, device
        self._shapes = expected_shapes(spec)
        self._generator = torch.Generator(device).manual_seed(0)

    def model(self) -> ModelWeights:
        """The weights outside the layers."""
        return outside_layers(self._spec, self._load)

    def layers(self) -> Iterator[LayerWeights]:
        """The layers in order, each made when it is asked for."""
        return every_layer(self._spec, self._load)

    def _load(self, *names: str) -> Tensor:
        shapes = [self._shapes[name] for name in names]
        rows = sum(shape[0] for shape in shapes)
        made = torch.empty(rows, *shapes[0][1:], dtype=self._dtype, device=self._device)
        if len(shapes[0]) == 1:
            return made.fill_(1)
        return made.normal_(0, 0.02, generator=self._generator)
