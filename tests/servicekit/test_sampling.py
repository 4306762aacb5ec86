"""Which sampling parameters are taken, and how the others are refused."""

from __future__ import annotations

import math

import pytest

from servicekit.errors import InvalidArgument, Reason
from servicekit.sampling import Sampling


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0},
        {"temperature": 1e4},
        {"top_k": -1},
        {"top_k": 0},
        {"top_k": 1},
        {"top_p": 1},
        {"top_p": 1e-9},
        {"seed": -(2**63)},
    ],
)
def test_what_is_in_range_is_taken(fields: dict[str, float]) -> None:
    for name, value in fields.items():
        assert getattr(Sampling(**fields), name) == value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 10001.0),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -2),
        ("top_p", 0.0),
        ("top_p", -0.5),
        ("top_p", 1.1),
        ("top_p", math.nan),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Sampling(**{name: value})  # type: ignore[arg-type]
    assert caught.value.reason is Reason.INVALID_FIELD
    assert caught.value.metadata == {"field": f"sampling.{name}"}
    assert caught.value.message.startswith(f"sampling.{name} is {value}; it must be ")
