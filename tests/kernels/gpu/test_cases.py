"""Public bug reports about kernels and sampling, as inputs to ours. Others have their names where
they belong: 4.x in tests/runnersvc/test_graphs.py, 5.1 in the tests of locs past 2 to the 31.
"""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton")

from kernels.gpu.attention_tuning import HEAD_DIMS, DecodeConfig, decode_config
from kernels.gpu.logit_rules import adjust_logits
from kernels.gpu.prefill_attention import prefill_attention
from kernels.gpu.sampling import sample
from kernels.reference import attention as reference
from kernels.reference.logit_rules import Adjusted, LogitRules
from tests.kernels.gpu.closeness import assert_near
from tests.kernels.gpu.sampling_cases import Draw, columns
from tests.kernels.gpu.test_decode_attention import Decode
from tests.kernels.gpu.test_logit_rules import no_rules, nothing_yet, on

VOCAB = 4100


@pytest.mark.parametrize("head_dim", [80, 96])
def test_case_5_3_what_follows_a_head_that_is_no_power_of_two_stays(
    head_dim: int, device: torch.device
) -> None:
    """sgl-project/sglang PR #1281: a head was read and written as wide as the next power of two."""
    rows = Decode([1, 17, 40], device, head_dim=head_dim)
    num_heads = rows.q.shape[1]
    config = DecodeConfig(16, num_warps=4, num_stages=2, workers_per_sm=1)
    assert_near(rows.attend(config), rows.expected())
    lens = torch.tensor([0, 0, 0], dtype=torch.int32, device=device), rows.seq_lens
    num_tokens = int(rows.seq_lens.sum())
    q = torch.randn(num_tokens, num_heads, head_dim, device=device)
    wide = torch.full((num_tokens + 1, num_heads, head_dim), 7.0, device=device)
    given = q, *rows.caches, rows.page_table, rows.table_idxs, *lens, rows.scale
    prefill_attention(*given, out=wide[:-1])
    expected = reference.prefill_attention(
        *(x.double() for x in given[:3]), *given[3:6], given[6], rows.scale
    )
    assert_near(wide[:-1], expected)
    assert (wide[-1] == 7.0).all()


def test_case_5_3_a_head_dim_without_a_kernel_is_refused_by_name() -> None:
    assert 112 not in HEAD_DIMS
    with pytest.raises(
        ValueError, match="head_dim 112 has no GPU kernel: it must be one of 64, 80"
    ):
        decode_config(112, 2, 1, torch.bfloat16)


def test_case_5_6_products_past_the_range_of_float16_are_scaled_in_float32(
    device: torch.device,
) -> None:
    """huggingface/transformers PR #33317: q times k passed 65504 before it was scaled."""
    rows = Decode([1, 17, 40], device, head_dim=128, dtype=torch.float16)
    rows.q.copy_(rows.q.sign() * (30 + 30 * torch.rand_like(rows.q)))
    rows.caches[0].copy_(rows.caches[0].sign() * (30 + 30 * torch.rand_like(rows.caches[0])))
    largest = (rows.q[0].double() @ rows.caches[0].double().nan_to_num()[:, 0].T).abs().max()
    assert largest > 65504
    out = rows.attend()
    assert out.isfinite().all()
    assert_near(out, rows.expected())


def test_case_6_1_a_banned_token_is_never_drawn_beside_warm_and_nearly_cold_rows(
    device: torch.device,
) -> None:
    """vllm-project/vllm PR #22261: a stand-in temperature made +inf of a masked -inf."""
    torch.manual_seed(0)
    logits = torch.randn(3, VOCAB, device=device)
    banned = logits.argmax(1)
    rules = no_rules(VOCAB)
    rules.is_active[:3] = True
    rules.stop_ids[:3, 0], rules.num_stop_ids[:3], rules.min_position[:3] = banned.cpu(), 1, 99
    rules = LogitRules(*on(device, rules))
    adjusted = nothing_yet(3, VOCAB, device)
    rows = torch.arange(3, dtype=torch.int32, device=device)
    draws = [Draw(temperature=0), Draw(temperature=1.0), Draw(temperature=1e-6)]
    given = columns(draws, device)
    adjust_logits(logits, adjusted, rules, rows, given["position"])
    is_broken = torch.ones(3, dtype=torch.bool, device=device)
    ids = sample(logits, **given, adjusted=adjusted, is_broken=is_broken)
    assert not is_broken.any()
    assert (ids != banned).all()
    second = logits.scatter(1, banned[:, None], -math.inf).argmax(1)
    assert ids[0] == second[0]
    assert ids[2] == second[2]
    alone = {name: column[:1] for name, column in given.items()}
    first = Adjusted(adjusted.logits[:1], adjusted.is_used[:1])
    assert sample(logits[:1], **alone, adjusted=first)[0] == ids[0]


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_case_6_3_a_seed_draws_the_same_alone_among_others_and_in_any_row(
    seed: int, device: torch.device
) -> None:
    """vllm-project/vllm issue #51226: one row without a seed made others lose theirs."""
    torch.manual_seed(1)
    row = torch.randn(1, VOCAB, device=device)
    seeded = Draw(temperature=0.8, seed=seed)
    others = [Draw(temperature=0), Draw(temperature=0.8, seed=seed, choice=1), Draw(seed=12)]

    def drawn(draws: list[Draw]) -> list[int]:
        logits = row.expand(len(draws), -1).contiguous()
        ids: list[int] = sample(logits, **columns(draws, device)).tolist()
        return ids

    (alone,) = drawn([seeded])
    assert drawn([seeded, *others])[0] == alone
    assert drawn([*others, seeded])[-1] == alone
    positions = [Draw(temperature=0.8, seed=seed, position=at) for at in range(6)]
    choices = [Draw(temperature=0.8, seed=seed, position=at, choice=1) for at in range(6)]
    assert drawn(positions) != drawn(choices)
