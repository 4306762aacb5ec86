"""A trace context is passed on as it is, or not at all."""

from __future__ import annotations

import pytest

from gateway.traceparent import traceparent_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"


def test_a_valid_one_is_found_among_other_metadata() -> None:
    metadata = [("user-agent", "x"), ("traceparent", VALID), ("tracestate", "a=b")]
    assert traceparent_of(metadata) == VALID


@pytest.mark.parametrize("flags", ["00", "01", "ff"])
def test_flags_are_any_byte(flags: str) -> None:
    given = f"00-{TRACE}-{SPAN}-{flags}"
    assert traceparent_of([("traceparent", given)]) == given


@pytest.mark.parametrize(
    "given",
    [
        "",
        VALID.upper(),
        VALID[:-1],
        VALID + "0",
        VALID + "\n",
        VALID + "-more",
        f"01-{TRACE}-{SPAN}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f"00_{TRACE}_{SPAN}_01",
        VALID.encode(),
    ],
)
def test_a_malformed_one_is_as_none(given: str | bytes) -> None:
    assert traceparent_of([("traceparent", given)]) == ""


def test_none_is_none_and_two_are_as_none() -> None:
    assert traceparent_of([]) == ""
    assert traceparent_of([("traceparent", VALID)] * 2) == ""
