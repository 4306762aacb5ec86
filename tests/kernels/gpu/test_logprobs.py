"""Log probabilities of the token drawn and of the likeliest, against float64."""

from __future__ import annotations

import pytest
import torch

from kernels.gpu.logprobs import CHUNK, logprobs
from kernels.reference.logprobs import logprobs as reference
from tests.kernels.gpu.closeness import assert_near


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("vocab", "num_top"), [(40, 0), (33, 5), (CHUNK + 77, 3)])
def test_the_likeliest_come_first_and_of_equals_the_lower_id(
    vocab: int, num_top: int, dtype: torch.dtype, device: torch.device
) -> None:
    logits = (torch.randn(4, vocab) * 3).to(dtype)
    logits[1, [30, 31, 32]] = 20.0
    token_ids, wanted = torch.tensor([0, 31, 9, vocab - 1]), torch.tensor([True, True, False, True])

    out = logprobs(logits.to(device), token_ids.to(device), wanted.to(device), num_top)

    exact = logits.double().log_softmax(-1)
    order = logits.double().sort(dim=-1, descending=True, stable=True).indices[:, :num_top]
    assert_near(out.chosen.cpu()[wanted], exact.gather(1, token_ids[:, None])[wanted, 0])
    assert out.top_ids.cpu()[wanted].tolist() == order[wanted].tolist()
    if num_top:
        assert_near(out.top.cpu()[wanted], exact.gather(1, order)[wanted])
    assert out.chosen[2].isnan()
    assert out.top[2].isnan().all()
    assert out.top_ids[2].tolist() == [0] * num_top


def test_the_reference_says_the_same(device: torch.device) -> None:
    logits, token_ids = torch.randn(3, 60), torch.tensor([5, 6, 7])
    wanted = torch.tensor([True, False, True])

    ours = logprobs(*(x.to(device) for x in (logits, token_ids, wanted)), 4)
    plain = reference(logits, token_ids, wanted, 4)

    torch.testing.assert_close(
        [x.cpu() for x in ours], list(plain), equal_nan=True, rtol=1e-5, atol=1e-5
    )


def test_an_id_that_is_ruled_out_is_no_likely_one(device: torch.device) -> None:
    logits = torch.full((1, 40), -torch.inf)
    logits[0, [3, 20]] = torch.tensor([0.0, 0.0])

    out = logprobs(
        logits.to(device), torch.tensor([20], device=device),
        torch.tensor([True], device=device), 2,
    )  # fmt: skip

    assert out.top_ids.tolist() == [[3, 20]]
    assert out.chosen.exp().item() == pytest.approx(0.5)
