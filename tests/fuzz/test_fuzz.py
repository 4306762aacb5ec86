"""The short form of `make fuzz`, with the same seed each time: no 5xx, no INTERNAL, no process
death, every page accounted for, and a neighbour that hears what it always heard.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.fuzz import Counts, fuzz
from tests.fuzz.fuzzed_system import FuzzedSystem, fuzzed_system

SEED = 1


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzedSystem]:
    with fuzzed_system(tmp_path_factory.mktemp("fuzzed")) as system:
        yield system


@pytest.mark.parametrize(
    ("counts", "most_answered"),
    [
        pytest.param(Counts(grpc=300), 0.5, id="messages"),
        pytest.param(Counts(raw_http=150), 0.5, id="http"),
        pytest.param(Counts(examples=12), 0.7, id="documented"),
    ],
)
async def test_bad_input_of_any_kind_harms_nobody(
    system: FuzzedSystem, counts: Counts, most_answered: float
) -> None:
    outcome = await fuzz(system, SEED, counts)
    assert not outcome.troubles, "\n".join(outcome.troubles)
    assert outcome.heard.answers > 0
    assert outcome.refused > outcome.codes.total() * (1 - most_answered), outcome.codes
