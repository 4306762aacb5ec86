"""The sampler against a sort in float64, and alone against in company."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.gpu.sampling import BAND_LEN, CHUNK, sample
from kernels.reference.logit_rules import Adjusted
from kernels.reference.sampling import sample as reference
from tests.kernels.gpu.sampling_cases import Draw, columns, draw_by_sort, kept_by_sort

KINDS = [
    Draw(),
    Draw(temperature=0.0),
    Draw(temperature=0.6),
    Draw(temperature=3.0),
    Draw(temperature=1e-6),
    Draw(top_k=1),
    Draw(top_k=2),
    Draw(top_k=50),
    Draw(top_k=10**9),
    Draw(top_p=0.9),
    Draw(top_p=0.999, temperature=2.0),
    Draw(top_p=1e-6),
    Draw(min_p=0.1),
    Draw(min_p=1.0),
    Draw(top_k=40, top_p=0.8, temperature=1.3),
    Draw(top_k=3, top_p=0.95, min_p=0.2),
    Draw(top_p=0.7, min_p=0.02),
]


def various(num_rows: int) -> list[Draw]:
    """Rows of every kind in turn, each with a seed and a position of its own."""
    seeds = [0, -1, 2**63 - 1, -(2**63), 12_345]
    return [
        Draw(kind.temperature, kind.top_k, kind.top_p, kind.min_p, seeds[i % 5], i % 3, 10 * i)
        for i in range(num_rows)
        for kind in (KINDS[i % len(KINDS)],)
    ]


def draw_rows(logits: Tensor, draws: list[Draw], device: torch.device) -> list[int]:
    ids: list[int] = sample(logits.to(device), **columns(draws, device)).tolist()
    return ids


@pytest.mark.parametrize(
    ("vocab", "dtype"),
    [
        (37, torch.float16),
        (CHUNK, torch.float32),
        (2 * CHUNK + 905, torch.float32),
        (2 * CHUNK + 905, torch.bfloat16),
    ],
)
def test_every_kind_of_row_draws_what_a_sort_would(
    vocab: int, dtype: torch.dtype, device: torch.device
) -> None:
    draws = various(len(KINDS))
    logits = (torch.randn(len(draws), vocab) * 3).to(dtype)

    assert draw_rows(logits, draws, device) == draw_by_sort(logits, draws)


def test_the_reference_draws_the_same() -> None:
    draws = various(4 * len(KINDS))
    logits = torch.randn(len(draws), 300) * 3

    at = columns(draws, torch.device("cpu"))

    assert reference(logits, **at).tolist() == draw_by_sort(logits, draws)


@pytest.mark.parametrize("vocab", [2 * CHUNK + 300, BAND_LEN + CHUNK + 1])
def test_a_flat_row_of_few_values_keeps_its_share_of_equals(
    vocab: int, device: torch.device
) -> None:
    """Most logits are equal to the pivot, over several chunks: ids decide which of them stay."""
    logits = torch.randint(0, 3, (8, vocab)).bfloat16() / 8
    draws = [
        Draw(top_p=p, top_k=k, position=i)
        for i, (p, k) in enumerate(
            [(0.5, 0), (0.3, 0), (0.9, 0), (1.0, 2000), (1.0, 17), (0.5, 3000), (0.99, 5), (0.7, 0)]
        )
    ]

    assert draw_rows(logits, draws, device) == draw_by_sort(logits, draws)


def test_a_band_too_long_to_be_set_aside_is_narrowed_all_the_same(device: torch.device) -> None:
    logits = torch.randn(4, BAND_LEN + 2 * CHUNK + 5)
    draws = [Draw(top_p=0.97), Draw(top_k=9000), Draw(top_k=9000, top_p=0.9), Draw(top_p=0.2)]

    assert draw_rows(logits, draws, device) == draw_by_sort(logits, draws)


def test_of_equal_logits_the_higher_ids_are_dropped(device: torch.device) -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 2.0, 0.0]]).expand(12, -1).contiguous()

    for draw in (Draw(top_k=2), Draw(top_p=0.3)):
        draws = [Draw(top_k=draw.top_k, top_p=draw.top_p, position=i) for i in range(12)]
        assert set(draw_rows(logits, draws, device)) == {1, 2}


def test_greedy_takes_the_lowest_of_equal_ids_in_any_chunk(device: torch.device) -> None:
    logits = torch.zeros(3, 3 * CHUNK)
    for row, ids in enumerate([(5, 6), (CHUNK + 1, 2 * CHUNK + 1), (2 * CHUNK, 3 * CHUNK - 1)]):
        logits[row, list(ids)] = 1.0

    ids = draw_rows(logits, [Draw(temperature=0), Draw(top_k=1), Draw(temperature=1e-5)], device)

    assert ids == [5, CHUNK + 1, 2 * CHUNK]


def test_a_draw_is_the_same_alone_in_any_batch_and_by_any_row(device: torch.device) -> None:
    draws = various(len(KINDS))
    logits = torch.randn(len(draws), 700) * 2
    together = draw_rows(logits, draws, device)
    order = torch.randperm(len(draws))

    shuffled = draw_rows(logits[order], [draws[i] for i in order], device)
    by_row = columns(draws, device)
    positions = by_row.pop("position")[order.to(device)]
    indirect = sample(logits[order].to(device), **by_row, position=positions, rows=order.to(device))

    assert shuffled == indirect.tolist() == [together[i] for i in order]
    for i in (0, 9, 14):
        assert draw_rows(logits[i : i + 1], draws[i : i + 1], device) == together[i : i + 1]


@pytest.mark.parametrize("draw", [Draw(temperature=2.0), Draw(top_p=0.8, min_p=0.1)])
def test_frequencies_follow_the_probabilities_that_are_left(
    draw: Draw, device: torch.device
) -> None:
    num_draws = 4000 if device.type == "cuda" else 120
    row = torch.tensor([0.05, 0.20, 0.06, 0.35, 0.30, 0.04]).log()
    draws = [
        Draw(draw.temperature, draw.top_k, draw.top_p, draw.min_p, position=i)
        for i in range(num_draws)
    ]

    ids = draw_rows(row.expand(num_draws, -1).contiguous(), draws, device)

    counts = torch.tensor(ids).bincount(minlength=6)
    expected = kept_by_sort(row, draw)
    expected *= num_draws / expected.sum()
    assert counts[expected == 0].sum() == 0
    chi_square = ((counts - expected).square() / expected)[expected > 0].sum()
    assert chi_square < 25  # five degrees of freedom: exceeded once in 7,000 honest samplers


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_broken_row_is_named_gives_an_id_and_spoils_no_other(
    bad: float, device: torch.device
) -> None:
    logits = torch.randn(6, CHUNK + 50)
    logits[1], logits[4, CHUNK + 3] = bad, bad
    draws = [Draw(top_p=0.9), Draw(), Draw(temperature=0), Draw(top_k=5), Draw(top_p=0.5), Draw()]
    is_broken = torch.ones(6, dtype=torch.bool, device=device)

    ids = sample(logits.to(device), **columns(draws, device), is_broken=is_broken).tolist()

    one_is_bad = bad != -math.inf  # a single -inf is a token ruled out
    assert is_broken.tolist() == [False, True, False, False, one_is_bad, False]
    assert all(0 <= i < logits.shape[1] for i in ids)
    for i in (0, 2, 3, 5):
        assert [ids[i]] == draw_by_sort(logits[i : i + 1], draws[i : i + 1])
    expected = torch.ones(6, dtype=torch.bool)
    reference(logits, **columns(draws, torch.device("cpu")), is_broken=expected)
    assert is_broken.tolist() == expected.tolist()


def test_logits_of_any_magnitude_are_searched(device: torch.device) -> None:
    """The range between two finite numbers may be no finite number; temperature -1 once was."""
    logits = torch.randn(4, 100)
    logits[:, 7], logits[:, 9], logits[:, 11] = 3e38, -3e38, -math.inf
    draws = [Draw(top_k=3), Draw(top_p=0.5), Draw(temperature=0), Draw(min_p=0.5)]

    assert draw_rows(logits, draws, device) == [7, 7, 7, 7]


def test_rows_that_were_adjusted_are_read_where_that_was_written(device: torch.device) -> None:
    logits = torch.zeros(3, 40)
    logits[:, 3] = 9.0
    other = torch.full((3, 40), math.nan)
    other[1] = 0.0
    other[1, 8] = 50.0
    is_used = torch.tensor([False, True, False])
    at = columns([Draw(top_p=0.5)] * 3, device)

    ids = sample(logits.to(device), **at, adjusted=Adjusted(other.to(device), is_used.to(device)))

    assert ids.tolist() == [3, 8, 3]


def test_a_padded_row_costs_its_neighbours_nothing(device: torch.device) -> None:
    """Padding is greedy, and its logits are whatever an empty cache gives."""
    logits = torch.randn(4, 60)
    logits[2:] = math.nan
    draws = [Draw(top_k=5), Draw(), Draw(temperature=0, seed=0), Draw(temperature=0, seed=0)]

    ids = draw_rows(logits, draws, device)

    assert ids[:2] == draw_by_sort(logits[:2], draws[:2])
    assert all(0 <= i < 60 for i in ids)


def test_a_graph_replays_the_sampler_with_new_logits(cuda: torch.device) -> None:
    draws = various(4 * len(KINDS))
    logits = (torch.randn(3, len(draws), 151_936) * 3).bfloat16()
    static, at = logits[0].to(cuda), columns(draws, cuda)
    sample(static, **at)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ids = sample(static, **at)

    for step in logits:
        static.copy_(step)
        graph.replay()
        assert ids.tolist() == sample(step.to(cuda), **at).tolist() == draw_by_sort(step, draws)
