"""All of a plan that goes to the device, in groups: arrays on the host, then tensors there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeAlias

from torch import Tensor

from runnersvc.row_rules import OpenedRules
from runnersvc.row_state import OpenedRows
from runnersvc.step_arrays import SamplingArrays, StepArrays
from servicekit.plan import Int32Array

Tensors: TypeAlias = tuple[Tensor, ...]


class WriteArrays(NamedTuple):
    """A table write, three of one length."""

    rows: Int32Array
    positions: Int32Array
    locs: Int32Array


@dataclass(frozen=True, slots=True)
class PlanArrays:
    """The groups of one plan; None where it has no such."""

    opened: OpenedRows
    write: WriteArrays
    rules: OpenedRules | None = None
    step: StepArrays | None = None
    sampling: SamplingArrays | None = None

    def moved(self, move: Callable[[Sequence[Int32Array]], Sequence[Tensor]]) -> StagedPlan:
        """The same groups of tensors: `move` is given all arrays at once, and returns the like."""
        groups = self.opened, self.write, self.rules, self.step, self.sampling
        tensors = iter(move([array for group in groups if group is not None for array in group]))
        opened, write, *others = (tuple(islice(tensors, len(group or ()))) for group in groups)
        return StagedPlan(opened, write, *(group or None for group in others))


class StagedPlan(NamedTuple):
    """The fields of each group on the device."""

    opened: Tensors
    write: Tensors
    rules: Tensors | None
    step: Tensors | None
    sampling: Tensors | None
