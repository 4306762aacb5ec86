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
        {"min_p": 0},
        {"min_p": 1},
        {"repetition_penalty": 0.01},
        {"repetition_penalty": 100},
        {"presence_penalty": -2},
        {"frequency_penalty": 2},
        {"logprobs": 0},
        {"logprobs": 20},
        {"logit_bias": ((0, -100.0), (5, 100.0))},
        {"logit_bias": tuple((token_id, 1.0) for token_id in range(1024))},
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
        ("logprobs", -1),
        ("logprobs", 21),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("min_p", math.nan),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 100.5),
        ("repetition_penalty", math.nan),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", math.inf),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Sampling(**{name: value})  # type: ignore[arg-type]
    assert caught.value.reason is Reason.INVALID_FIELD
    assert caught.value.metadata == {"field": f"sampling.{name}"}
    assert caught.value.message.startswith(f"sampling.{name} is {value}; it must be ")


@pytest.mark.parametrize(
    ("biases", "says"),
    [
        (((7, 100.5),), "is 100.5 for id 7; it must be from -100 to 100"),
        (((7, math.nan),), "is nan for id 7"),
        (((7, 1.0), (7, 2.0)), "a token id twice; it must be of each id once"),
        (tuple((token_id, 1.0) for token_id in range(1025)), "is 1025 long; it must be at most"),
    ],
)
def test_biases_are_refused_with_the_id_at_fault(
    biases: tuple[tuple[int, float], ...], says: str
) -> None:
    with pytest.raises(InvalidArgument, match=says) as caught:
        Sampling(logit_bias=biases)
    assert caught.value.metadata == {"field": "sampling.logit_bias"}
