"""Penalties, biases and masks against the reference, and the reference against a hand's sums."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.gpu.logit_rules import BLOCK_V, adjust_logits
from kernels.gpu.token_history import count_output, mark_prompt
from kernels.reference import logit_rules as reference
from kernels.reference import token_history as reference_history
from kernels.reference.logit_rules import Adjusted, LogitRules
from tests.kernels.gpu.closeness import assert_near

NUM_ROWS, NOBODY = 5, -math.inf


def no_rules(vocab: int, counts: torch.dtype = torch.int32) -> LogitRules:
    """Rows without a rule; lists have room for three, and ids of no meaning where none is."""
    return LogitRules(
        is_active=torch.zeros(NUM_ROWS, dtype=torch.bool),
        repetition=torch.ones(NUM_ROWS),
        presence=torch.zeros(NUM_ROWS),
        frequency=torch.zeros(NUM_ROWS),
        prompt_words=torch.zeros(NUM_ROWS, (vocab + 31) // 32, dtype=torch.int32),
        output_counts=torch.zeros(NUM_ROWS, vocab, dtype=counts),
        bias_ids=torch.full((NUM_ROWS, 3), 10**9, dtype=torch.int32),
        biases=torch.full((NUM_ROWS, 3), math.nan),
        num_biases=torch.zeros(NUM_ROWS, dtype=torch.int32),
        stop_ids=torch.full((NUM_ROWS, 2), 10**9, dtype=torch.int32),
        num_stop_ids=torch.zeros(NUM_ROWS, dtype=torch.int32),
        min_position=torch.zeros(NUM_ROWS, dtype=torch.int32),
    )


def some_rules(vocab: int, counts: torch.dtype = torch.int32) -> LogitRules:
    """Row 0 has none, row 1 penalties, row 2 biases, row 3 a least length, row 4 all of them."""
    rules = no_rules(vocab, counts)
    rules.is_active[1:] = True
    rules.repetition[[1, 4]] = torch.tensor([1.5, 0.8])
    rules.presence[[1, 4]] = torch.tensor([0.25, -0.5])
    rules.frequency[[1, 4]] = torch.tensor([0.125, 0.5])
    rules.prompt_words.copy_(torch.randint(-(2**31), 2**31, rules.prompt_words.shape))
    rules.output_counts.copy_(torch.randint(0, 40, rules.output_counts.shape).clamp(max=3))
    for row in (2, 4):
        rules.bias_ids[row, :2] = torch.tensor([0, vocab - 1])
        rules.biases[row, :2] = torch.tensor([-100.0, 3.5])
        rules.num_biases[row] = 2
    for row in (3, 4):
        rules.stop_ids[row] = torch.tensor([1, vocab - 2])
        rules.num_stop_ids[row] = 2
        rules.min_position[row] = 12
    return rules


def on(device: torch.device, tensors: tuple[Tensor, ...]) -> list[Tensor]:
    return [tensor.to(device) for tensor in tensors]


def nothing_yet(num_rows: int, vocab: int, device: torch.device) -> Adjusted:
    return Adjusted(
        torch.full((num_rows, vocab), math.nan, device=device),
        torch.ones(num_rows, dtype=torch.bool, device=device),
    )


@pytest.mark.parametrize("counts", [torch.int16, torch.int32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [40, BLOCK_V + 77])
def test_each_row_gets_its_own_rules_and_rows_without_are_left(
    vocab: int, dtype: torch.dtype, counts: torch.dtype, device: torch.device
) -> None:
    rules = some_rules(vocab, counts)
    rows = torch.tensor([4, 0, 3, 1, 2, 3, 0])
    position = torch.tensor([11, 5, 12, 100, 7, 0, 3], dtype=torch.int32)
    logits = (torch.randn(7, vocab) * 4).to(dtype)
    words = torch.randint(-(2**31), 2**31, (7, (vocab + 31) // 32), dtype=torch.int32)
    is_masked = torch.tensor([True, False, False, False, True, False, True])
    masks = (words, is_masked)
    out = nothing_yet(7, vocab, device)

    adjust_logits(
        logits.to(device), out, LogitRules(*on(device, rules)),
        *on(device, (rows, position, *masks)),
    )  # fmt: skip

    expected = nothing_yet(7, vocab, torch.device("cpu"))
    reference.adjust_logits(logits, expected, rules, rows, position, *masks)
    assert out.is_used.tolist() == [True, False, True, True, True, True, True]
    assert out.is_used.tolist() == expected.is_used.tolist()
    assert out.logits[1].isnan().all()
    for got, wanted in zip(out.logits.cpu(), expected.logits, strict=True):
        assert (got == NOBODY).tolist() == (wanted == NOBODY).tolist()
    finite = expected.logits.isfinite()
    assert_near(out.logits.cpu()[finite], expected.logits[finite].double())


def test_the_rules_of_a_row_by_hand() -> None:
    """Ids 0 and 1 are of the prompt, 1 and 2 were sampled, 1 twice; 4 stops; 5 is not allowed."""
    rules = no_rules(6)
    rules.is_active[2] = True
    rules.repetition[2], rules.presence[2], rules.frequency[2] = 2.0, 0.5, 0.25
    rules.prompt_words[2] = 0b11
    rules.output_counts[2] = torch.tensor([0, 2, 1, 0, 0, 0])
    rules.bias_ids[2, 0], rules.biases[2, 0], rules.num_biases[2] = 3, 1.5, 1
    rules.stop_ids[2, 0], rules.num_stop_ids[2], rules.min_position[2] = 4, 1, 8
    logits = torch.tensor([[2.0, -2.0, 6.0, 1.0, 1.0, 1.0]])
    out = nothing_yet(1, 6, torch.device("cpu"))
    row, words, masked = torch.tensor([2]), torch.tensor([[0b011111]]), torch.tensor([True])

    for position, stop in ((7, NOBODY), (8, 1.0)):
        reference.adjust_logits(
            logits, out, rules, row, torch.tensor([position]), words.int(), masked
        )
        assert out.logits.tolist() == [[1.0, -5.0, 2.25, 2.5, stop, NOBODY]]


def test_without_a_mask_only_active_rows_are_touched(device: torch.device) -> None:
    rules = some_rules(64)
    out = nothing_yet(2, 64, device)
    rows, position = torch.tensor([0, 2]), torch.tensor([3, 3], dtype=torch.int32)

    adjust_logits(
        torch.zeros(2, 64, device=device), out, LogitRules(*on(device, rules)),
        rows.to(device), position.to(device),
    )  # fmt: skip

    assert out.is_used.tolist() == [False, True]
    assert out.logits[0].isnan().all()
    assert out.logits[1].tolist() == [-100.0] + [0.0] * 62 + [3.5]


def test_every_prompt_id_sets_its_bit_in_its_own_row(device: torch.device) -> None:
    rows = torch.tensor([0, 2, 2, 2, 0] * 60)[:281]
    token_ids = torch.cat((torch.tensor([0, 31, 31, 32, 95]), torch.randint(0, 96, (276,))))
    words = torch.zeros(3, 3, dtype=torch.int32)
    marked = words.clone().to(device)

    mark_prompt(marked, rows.int().to(device), token_ids.to(device))

    reference_history.mark_prompt(words, rows, token_ids)
    assert torch.equal(marked.cpu(), words)
    present = {(row, i) for row, i in zip(rows.tolist(), token_ids.tolist(), strict=True)}
    for row in range(3):
        for i in range(96):
            assert bool(words[row, i // 32].item() >> i % 32 & 1) == ((row, i) in present)


@pytest.mark.parametrize("counts", [torch.int16, torch.int32])
def test_a_sampled_id_is_counted_in_its_own_row(counts: torch.dtype, device: torch.device) -> None:
    output = torch.randint(0, 9, (4, 50), dtype=counts)
    counted = output.clone().to(device)
    rows, token_ids = torch.tensor([3, 0, 1]), torch.tensor([49, 7, 7])

    count_output(counted, rows.to(device), token_ids.to(device))

    reference_history.count_output(output, rows, token_ids)
    assert torch.equal(counted.cpu(), output)
