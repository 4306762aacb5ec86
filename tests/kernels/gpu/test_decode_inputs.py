"""What decoding rows compute, beside the reference."""

from __future__ import annotations

import pytest
import torch

from kernels.gpu import decode_inputs as ours
from kernels.reference import decode_inputs as reference

NUM_ROWS, WIDTH = 300, 96  # the dummy row is one more


@pytest.mark.parametrize("batch", [1, 127, 128, 129, 300])
def test_rows_compute_their_last_token_at_their_last_position(batch: int, device: str) -> None:
    last_token = torch.randint(1000, (NUM_ROWS + 1,), dtype=torch.int32, device=device)
    page_table = torch.randint(2**30, (NUM_ROWS + 1, WIDTH), dtype=torch.int32, device=device)
    rows = torch.randperm(NUM_ROWS + 1, device=device)[:batch].int()
    seq_lens = torch.randint(1, WIDTH + 1, (batch,), dtype=torch.int32, device=device)
    given = last_token, page_table, rows, seq_lens
    made, expected = ours.decode_inputs(*given), reference.decode_inputs(*given)
    for tensor, other in zip(made, expected, strict=True):
        assert torch.equal(tensor, other)
        assert tensor.dtype == other.dtype
