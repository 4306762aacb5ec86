"""How tokens are drawn, checked: the same rules wherever a request enters."""

from __future__ import annotations

import math
from dataclasses import dataclass

from servicekit.errors import InvalidArgument, Reason

MAX_TEMPERATURE = 1e4
MAX_REPETITION_PENALTY = 100.0
MAX_PENALTY = 2.0  # of presence and frequency, either way
MAX_BIAS = 100.0  # either way
MAX_BIASES = 1024
MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Sampling:
    """Resolved sampling parameters. Errors: InvalidArgument INVALID_FIELD names the field."""

    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # -1 and 0: off
    top_p: float = 1.0  # in (0, 1]; 1: off
    seed: int = 0
    min_p: float = 0.0  # 0: off
    repetition_penalty: float = 1.0  # 1: off
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, bias), each id once
    logprobs: int | None = None  # of so many likeliest tokens, and the sampled one; None: of none

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= MAX_TEMPERATURE):
            raise _invalid(
                "temperature", self.temperature, f"a number from 0 to {MAX_TEMPERATURE:.0f}"
            )
        if self.top_k < -1:
            raise _invalid("top_k", self.top_k, "at least 1, or 0 or -1 to switch it off")
        if not 0 < self.top_p <= 1:  # NaN too
            raise _invalid("top_p", self.top_p, "greater than 0 and at most 1")
        if not 0 <= self.min_p <= 1:
            raise _invalid("min_p", self.min_p, "from 0 to 1")
        if not 0 < self.repetition_penalty <= MAX_REPETITION_PENALTY:
            rule = f"greater than 0 and at most {MAX_REPETITION_PENALTY:.0f}"
            raise _invalid("repetition_penalty", self.repetition_penalty, rule)
        for name in ("presence_penalty", "frequency_penalty"):
            if not -MAX_PENALTY <= getattr(self, name) <= MAX_PENALTY:
                rule = f"from {-MAX_PENALTY:.0f} to {MAX_PENALTY:.0f}"
                raise _invalid(name, getattr(self, name), rule)
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise _invalid("logprobs", self.logprobs, f"from 0 to {MAX_LOGPROBS}")
        self._check_biases()

    def _check_biases(self) -> None:
        if len(self.logit_bias) > MAX_BIASES:
            raise _invalid("logit_bias", f"{len(self.logit_bias)} long", f"at most {MAX_BIASES}")
        if len({token_id for token_id, _ in self.logit_bias}) < len(self.logit_bias):
            raise _invalid("logit_bias", "one with a token id twice", "of each id once")
        for token_id, bias in self.logit_bias:
            if not -MAX_BIAS <= bias <= MAX_BIAS:
                rule = f"from {-MAX_BIAS:.0f} to {MAX_BIAS:.0f} for each id"
                raise _invalid("logit_bias", f"{bias} for id {token_id}", rule)


def _invalid(name: str, value: float | str, rule: str) -> InvalidArgument:
    return InvalidArgument(
        Reason.INVALID_FIELD,
        f"sampling.{name} is {value}; it must be {rule}",
        field=f"sampling.{name}",
    )
