"""How tokens are drawn, checked: the same rules wherever a request enters."""

from __future__ import annotations

import math
from dataclasses import dataclass

from servicekit.errors import InvalidArgument, Reason

MAX_TEMPERATURE = 1e4


@dataclass(frozen=True, slots=True)
class Sampling:
    """Resolved sampling parameters. Errors: InvalidArgument INVALID_FIELD names the field."""

    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # -1 and 0: off
    top_p: float = 1.0  # in (0, 1]; 1: off
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= MAX_TEMPERATURE):
            raise _invalid(
                "temperature", self.temperature, f"a number from 0 to {MAX_TEMPERATURE:.0f}"
            )
        if self.top_k < -1:
            raise _invalid("top_k", self.top_k, "at least 1, or 0 or -1 to switch it off")
        if not 0 < self.top_p <= 1:  # NaN too
            raise _invalid("top_p", self.top_p, "greater than 0 and at most 1")


def _invalid(name: str, value: float, rule: str) -> InvalidArgument:
    return InvalidArgument(
        Reason.INVALID_FIELD,
        f"sampling.{name} is {value}; it must be {rule}",
        field=f"sampling.{name}",
    )
