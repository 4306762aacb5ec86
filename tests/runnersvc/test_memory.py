"""How large the pool is."""

from __future__ import annotations

import pytest

from runnersvc.memory import DEFAULT_KV_BYTES, MemoryUse, PoolChoice
from servicekit.errors import SetupError

pytestmark = pytest.mark.torch

GIB = 2**30
PAGE = 2**20  # bytes
USE = MemoryUse(
    card_bytes=100 * GIB,
    free_bytes=80 * GIB,
    weights_bytes=10 * GIB,
    step_bytes=4 * GIB,
    graphs_bytes=1 * GIB,
    outside_bytes=1 * GIB,
)


def test_the_pool_is_what_a_fraction_of_the_card_leaves_beside_all_else() -> None:
    pages = PoolChoice(gpu_memory_fraction=0.5).num_pages_of(16, PAGE, USE)
    assert pages == (50 - 10 - 4 - 1 - 1) * 1024 - 1  # one is the dummy page


def test_case_10_6_what_others_hold_does_not_count_while_there_is_room() -> None:
    crowded = MemoryUse(100 * GIB, 40 * GIB, 10 * GIB, 4 * GIB, GIB, GIB)
    choice = PoolChoice(gpu_memory_fraction=0.5)
    assert choice.num_pages_of(16, PAGE, crowded) == choice.num_pages_of(16, PAGE, USE)


@pytest.mark.parametrize(
    ("choice", "pages"),
    [
        (PoolChoice(num_pages=7), 7),
        (PoolChoice(kv_tokens=100), 6),
        (PoolChoice(kv_bytes=5 * PAGE + 1), 5),
    ],
)
@pytest.mark.parametrize("use", [USE, None])
def test_a_given_pool_is_taken(choice: PoolChoice, pages: int, use: MemoryUse | None) -> None:
    assert choice.num_pages_of(16, PAGE, use) == pages


def test_on_a_cpu_it_is_a_gibibyte_when_nothing_is_given() -> None:
    assert PoolChoice().num_pages_of(16, PAGE, None) == DEFAULT_KV_BYTES // PAGE


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (PoolChoice(gpu_memory_fraction=0.01), "1.00 GiB are allowed, weights take 10.00 GiB"),
        (PoolChoice(gpu_memory_fraction=1.0), "are needed beside the weights, and 80.00 GiB are"),
        (PoolChoice(num_pages=90 * 1024), "95.00 GiB are needed beside the weights"),
        (PoolChoice(kv_bytes=PAGE - 1), "does not hold one page of 16 tokens"),
        (PoolChoice(kv_tokens=15), "does not hold one page of 16 tokens"),
    ],
)
def test_case_10_6_a_pool_that_cannot_be_is_refused_with_the_figures(
    choice: PoolChoice, says: str
) -> None:
    with pytest.raises(SetupError, match=says):
        choice.num_pages_of(16, PAGE, USE)
