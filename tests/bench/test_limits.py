from __future__ import annotations

import pytest

from bench.gpu.limits import MATMUL_FLOPS, READ_GBPS, decode_rows, kv_bytes_of_token, limit
from bench.gpu.workloads import Request, Workload, alike, with_common_prefix, workload
from runnersvc.families import parse_spec

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
}
SMALL = parse_spec(
    QWEN3
    | {
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "hidden_size": 1024,
        "intermediate_size": 3072,
    }
)
LARGE = parse_spec(
    QWEN3
    | {
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "hidden_size": 5120,
        "intermediate_size": 17_408,
    }
)


@pytest.mark.parametrize(("spec", "tok_s"), [(SMALL, 32_400), (LARGE, 7000)])
def test_offline_comes_near_the_limits_that_the_goals_were_set_with(spec, tok_s):
    assert limit(workload("offline"), spec, READ_GBPS).tok_s == pytest.approx(tok_s, rel=0.02)


def test_one_row_and_prompts_alone_come_near_them_too():
    assert 1e3 / limit(workload("single"), SMALL, READ_GBPS).tok_s == pytest.approx(0.3, rel=0.1)
    assert 64 / limit(workload("prefill2k"), SMALL, READ_GBPS).tok_s == pytest.approx(0.2, rel=0.11)


def test_rows_leave_decode_when_they_have_their_tokens():
    given = Workload("three", (Request([1], 1), Request([1], 2), Request([1], 4)))
    assert decode_rows(given) == [2, 1, 1]


def test_each_decode_step_reads_what_lies_before_its_token():
    """A prompt of 10, three tokens: the second step reads 11 tokens, the third 12."""
    kv_s = limit(alike("one", 1, 10, 3), SMALL, READ_GBPS).kv_s
    assert kv_s == pytest.approx(23 * kv_bytes_of_token(SMALL) / (READ_GBPS * 1e9))
    assert kv_bytes_of_token(SMALL) == 114_688


def test_what_is_common_is_read_once_a_step_and_not_computed():
    own = limit(alike("own", 4, 8, 3), SMALL, READ_GBPS)
    with_common = limit(with_common_prefix("common", 4, 100, 8, 3), SMALL, READ_GBPS)
    common_s = 2 * 100 * kv_bytes_of_token(SMALL) / (READ_GBPS * 1e9)
    assert with_common.kv_s == pytest.approx(own.kv_s + common_s)
    attention_flops = 4 * 4 * 28 * 16 * 128 * 100 * 8  # rows, layers, heads; what 8 tokens see
    assert with_common.prefill_s == pytest.approx(own.prefill_s + attention_flops / MATMUL_FLOPS)
