"""Rows with sampling parameters, and the id each must draw, by a sort in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.reference.sampling import uniform


@dataclass(frozen=True)
class Draw:
    """The parameters of one row."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 7
    choice: int = 0
    position: int = 3


FIELDS = {
    "temperature": torch.float32,
    "top_k": torch.int32,
    "top_p": torch.float32,
    "min_p": torch.float32,
    "seed": torch.int64,
    "choice": torch.int32,
    "position": torch.int32,
}


def columns(draws: list[Draw], device: torch.device) -> dict[str, Tensor]:
    """The arguments of `sample` by name."""
    return {
        name: torch.tensor([getattr(draw, name) for draw in draws], dtype=dtype, device=device)
        for name, dtype in FIELDS.items()
    }


def kept_by_sort(row: Tensor, draw: Draw) -> Tensor:
    """Weights float64 [vocab] of one row's tokens, 0 where they are dropped."""
    row = row.double()
    weights = ((row - row.max()) / draw.temperature).exp()
    order = torch.argsort(row, descending=True, stable=True)  # of equals the lower id first
    in_order = weights[order].clone()
    if 0 < draw.top_k < len(row):
        in_order[draw.top_k :] = 0
    if draw.top_p < 1:
        reached = in_order.cumsum(0) >= torch.tensor(draw.top_p).double() * in_order.sum()
        in_order[int(reached.nonzero()[0]) + 1 :] = 0
    in_order[in_order < torch.tensor(draw.min_p).double()] = 0
    return torch.zeros_like(weights).scatter_(0, order, in_order)


def draw_by_sort(logits: Tensor, draws: list[Draw]) -> list[int]:
    """The id each row must draw, from `logits` [N, vocab]."""
    at = columns(draws, torch.device("cpu"))
    uniforms = uniform(at["seed"], at["choice"], at["position"]).double()
    ids = []
    for row, draw, share in zip(logits, draws, uniforms, strict=True):
        if draw.temperature <= 1e-5 or draw.top_k == 1:
            ids.append(int(row.float().argmax()))
            continue
        running = kept_by_sort(row, draw).cumsum(0)
        ids.append(int((running > share * running[-1]).nonzero()[0]))
    return ids
