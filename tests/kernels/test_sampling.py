from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from kernels.reference.sampling import _invert_cdf, philox, sample, uniform

pytestmark = pytest.mark.torch

ALL_ONES = 0xFFFFFFFF
PARAMETERS = [  # temperature, top_k, top_p, seed
    (0.7, 0, 1.0, 1),
    (1.0, 5, 1.0, -1),
    (2.0, 0, 0.9, 0),
    (0.3, 20, 0.5, 5),
    (0.0, 0, 1.0, 2),
    (5.0, 0, 0.999, 3),
]


@dataclass(frozen=True)
class Draw:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 7
    choice: int = 0
    position: int = 3


def sample_rows(logits: torch.Tensor, draws: list[Draw]) -> list[int]:
    fields = {
        "temperature": torch.float32,
        "top_k": torch.int32,
        "top_p": torch.float32,
        "seed": torch.int64,
        "choice": torch.int32,
        "position": torch.int32,
    }
    columns = {
        name: torch.tensor([getattr(draw, name) for draw in draws], dtype=dtype)
        for name, dtype in fields.items()
    }
    ids: list[int] = sample(logits, **columns).tolist()
    return ids


def sample_many(logits: torch.Tensor, draw: Draw, num_draws: int) -> torch.Tensor:
    """How often each id comes, over positions 0 … num_draws - 1."""
    draws = [
        Draw(draw.temperature, draw.top_k, draw.top_p, draw.seed, draw.choice, position)
        for position in range(num_draws)
    ]
    ids = sample_rows(logits.expand(num_draws, -1), draws)
    return torch.tensor(ids).bincount(minlength=logits.shape[-1])


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (ALL_ONES, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ],
)
def test_philox_gives_the_known_answers_of_random123(word: int, expected: list[int]) -> None:
    w = torch.tensor([word])

    assert [int(out) for out in philox((w, w, w, w), (w, w))] == expected


def test_philox_gives_the_known_answer_for_the_digits_of_pi() -> None:
    c = [torch.tensor([x]) for x in (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)]
    k = [torch.tensor([x]) for x in (0xA4093822, 0x299F31D0)]

    out = philox((c[0], c[1], c[2], c[3]), (k[0], k[1]))

    assert [int(x) for x in out] == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def test_uniforms_differ_by_seed_choice_and_position_and_stay_below_one() -> None:
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), 2**32]
    keys = [(s, c, p) for s in seeds for c in (0, 1) for p in (0, 1, 8191)]

    u = uniform(*(torch.tensor(column) for column in zip(*keys, strict=True)))

    assert len(set(u.tolist())) == len(keys)
    assert 0 <= u.min() < u.max() < 1


def test_greedy_rows_take_the_argmax_whatever_their_neighbours_do() -> None:
    logits = torch.randn(6, 100)
    draws = [Draw(temperature=0), Draw(), Draw(0), Draw(top_k=5), Draw(1e-6), Draw(top_k=1)]

    ids = sample_rows(logits, draws)

    best = logits.argmax(-1).tolist()
    assert [ids[i] for i in (0, 2, 4, 5)] == [best[i] for i in (0, 2, 4, 5)]
    assert sample_rows(logits, [Draw(temperature=0)] * 6) == best


@pytest.mark.parametrize("vocab", [37, 3000])
def test_a_draw_is_the_same_alone_and_in_any_batch(vocab: int) -> None:
    logits = torch.randn(12, vocab) * 2
    draws = [
        Draw(temperature=t, top_k=k, top_p=p, seed=seed, position=i)
        for i, (t, k, p, seed) in enumerate(PARAMETERS * 2)
    ]

    together = sample_rows(logits, draws)

    order = torch.randperm(12).tolist()
    shuffled = sample_rows(logits[order], [draws[i] for i in order])
    assert shuffled == [together[i] for i in order]
    assert [sample_rows(logits[i : i + 1], [draws[i]])[0] for i in range(12)] == together


def test_the_draw_changes_with_seed_choice_and_position() -> None:
    logits = torch.zeros(1, 50_000)
    draws = [Draw(), Draw(seed=8), Draw(choice=1), Draw(position=4)]

    assert len({sample_rows(logits, [draw])[0] for draw in draws}) == 4


@pytest.mark.parametrize(
    ("draw", "kept"),
    [
        (Draw(), [0, 1, 2, 3, 4, 5]),
        (Draw(temperature=0.5), [0, 1, 2, 3, 4, 5]),
        (Draw(temperature=3.0), [0, 1, 2, 3, 4, 5]),
        (Draw(top_k=3), [1, 3, 4]),
        (Draw(top_k=6), [0, 1, 2, 3, 4, 5]),  # the whole vocabulary: off
        (Draw(top_p=0.6), [3, 4]),  # 0.35 + 0.30 reach 0.6
        (Draw(top_k=3, top_p=0.6), [3, 4]),  # 0.35 of 0.85 is 0.41, with 0.30 it is 0.76
        (Draw(top_k=2, top_p=0.5), [3]),  # 0.35 of 0.65 is 0.54
        (Draw(top_p=1e-6), [3]),  # at least one stays
    ],
)  # fmt: skip
def test_frequencies_follow_the_probabilities_that_are_left(draw: Draw, kept: list[int]) -> None:
    probabilities = torch.tensor([0.05, 0.20, 0.06, 0.35, 0.30, 0.04], dtype=torch.float64)
    num_draws = 4000

    counts = sample_many(probabilities.log().float()[None], draw, num_draws)

    weights = torch.zeros(6, dtype=torch.float64)
    weights[kept] = probabilities[kept] ** (1 / draw.temperature)
    expected = weights / weights.sum() * num_draws
    assert counts[expected == 0].sum() == 0
    possible = expected > 0
    chi_square = ((counts - expected).square() / expected)[possible].sum()
    assert (
        chi_square < 25
    )  # five degrees of freedom at most: exceeded once in 7,000 honest samplers


def test_of_equal_logits_the_higher_ids_are_dropped() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 2.0, 0.0]])

    assert sample_many(logits, Draw(top_k=2), 200).nonzero()[:, 0].tolist() == [1, 2]
    assert sample_many(logits, Draw(top_p=0.3), 200).nonzero()[:, 0].tolist() == [1, 2]


def test_top_p_of_a_flat_distribution_keeps_its_share_of_a_large_vocabulary() -> None:
    """More candidates than the short sorted list holds: the full sort decides."""
    vocab = 5000
    logits = torch.arange(vocab, dtype=torch.float32).neg()[None] * 1e-6  # nearly flat, id 0 first

    counts = sample_many(logits, Draw(top_p=0.5), 400)

    assert counts[: vocab // 2 + 10].sum() == 400
    assert counts[vocab // 4 : vocab // 2].sum() > 150


def test_the_least_and_the_largest_uniform_draw_tokens_of_some_weight() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0, 2.0, 0.0]]).expand(3, -1).contiguous()

    ids = _invert_cdf(weights, torch.tensor([0.0, 1 / 3, 1 - 2**-24]))

    assert ids.tolist() == [1, 3, 3]


def test_a_token_of_no_weight_is_never_drawn() -> None:
    logits = torch.full((1, 64), -torch.inf)
    logits[0, 40] = 0.0

    assert sample_many(logits, Draw(), 100)[40] == 100


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("draw", [Draw(), Draw(temperature=0), Draw(top_k=2, top_p=0.9)])
def test_a_row_with_a_logit_that_is_no_number_still_gives_an_id_of_the_vocabulary(
    bad: float, draw: Draw
) -> None:
    """It once gave `vocab`, an id that the next step then looked up: every request paid for it."""
    logits = torch.tensor([[1.0, bad, 2.0, 0.0], [bad] * 4, [0.0, 5.0, 1.0, 2.0]])
    spoilt, all_spoilt, sound = sample_rows(logits, [draw] * 3)
    assert 0 <= spoilt < 4
    assert 0 <= all_spoilt < 4
    assert [sound] == sample_rows(logits[2:], [draw])
