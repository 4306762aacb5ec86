"""The reading and remembering of last tokens, beside its reference."""

from __future__ import annotations

import pytest
import torch

from kernels.gpu import row_tokens
from kernels.reference import row_tokens as reference

NUM_ROWS, WIDTH = 300, 96  # the dummy row is one more


@pytest.mark.parametrize("batch", [1, 127, 128, 129, 300])
def test_rows_compute_their_last_token_at_their_last_position(batch: int, device: str) -> None:
    last_token = torch.randint(1000, (NUM_ROWS + 1,), dtype=torch.int32, device=device)
    page_table = torch.randint(2**30, (NUM_ROWS + 1, WIDTH), dtype=torch.int32, device=device)
    rows = torch.randperm(NUM_ROWS + 1, device=device)[:batch].int()
    seq_lens = torch.randint(1, WIDTH + 1, (batch,), dtype=torch.int32, device=device)
    given = last_token, page_table, rows, seq_lens
    ours, expected = row_tokens.decode_inputs(*given), reference.decode_inputs(*given)
    for tensor, other in zip(ours, expected, strict=True):
        assert torch.equal(tensor, other)
        assert tensor.dtype == other.dtype


@pytest.mark.parametrize("batch", [1, 128, 200])
def test_what_rows_sampled_is_remembered_but_not_in_the_dummy_row(batch: int, device: str) -> None:
    rows = torch.randperm(NUM_ROWS, device=device)[:batch].int()
    rows[batch // 2 :] = NUM_ROWS  # padding
    token_ids = torch.randint(1000, (batch,), device=device)
    last_token = torch.full((NUM_ROWS + 1,), -1, dtype=torch.int32, device=device)
    sampled = torch.full((batch,), -1, dtype=torch.int32, device=device)
    expected = last_token.clone(), sampled.clone()
    row_tokens.remember(last_token, rows, token_ids, sampled)
    reference.remember(expected[0], rows, token_ids, expected[1])
    assert torch.equal(last_token, expected[0])
    assert torch.equal(sampled, expected[1])
    assert last_token[-1] == -1
