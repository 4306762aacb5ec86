from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runnersvc.families import LinearScaling, Llama3Scaling, load_spec, parse_spec
from servicekit.errors import SetupError

SMOL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-5,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_a_config_json_becomes_a_spec(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMOL))

    spec = load_spec(tmp_path)

    assert spec.family.architecture == "LlamaForCausalLM"
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads) == (30, 9, 3)
    assert (spec.hidden_dim, spec.head_dim, spec.intermediate_dim) == (576, 64, 1536)
    assert (spec.vocab_size, spec.max_position_embeddings) == (49152, 8192)
    assert spec.rms_eps == 1e-5
    assert spec.tie_word_embeddings


def test_an_explicit_head_dim_wins_over_the_quotient() -> None:
    assert parse_spec(SMOL | {"head_dim": 128}).head_dim == 128
    assert parse_spec(SMOL | {"head_dim": None}).head_dim == 64


def test_without_kv_heads_every_head_has_its_own() -> None:
    assert parse_spec(SMOL | {"num_key_value_heads": None}).num_kv_heads == 9


def test_model_type_decides_where_no_architecture_is_named() -> None:
    config = {name: value for name, value in SMOL.items() if name != "architectures"}

    assert parse_spec(config).family.model_type == "llama"


@pytest.mark.parametrize(
    ("rope", "theta"),
    [
        ({}, 10000.0),
        ({"rope_theta": 5e5}, 5e5),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}, 1e5),
        ({"rope_parameters": {"rope_theta": 1e5}, "rope_theta": 100000}, 1e5),
        ({"rope_scaling": None, "rope_theta": 1e6}, 1e6),
    ],
)
def test_the_rope_theta_may_stand_in_either_place(rope: dict[str, Any], theta: float) -> None:
    assert parse_spec(SMOL | rope).rope.theta == theta


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_scaled_ropes_are_read_under_their_new_and_their_old_name(key: str) -> None:
    linear = parse_spec(SMOL | {key: {"type": "linear", "factor": 2}}).rope
    llama3 = parse_spec(SMOL | {key: LLAMA3_ROPE, "rope_theta": 5e5}).rope

    assert linear.scaling == LinearScaling(2.0)
    assert llama3.scaling == Llama3Scaling(8.0, 1.0, 4.0, 8192)
    assert llama3.theta == 5e5


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["MambaForCausalLM"]}, ["MambaForCausalLM", "LlamaForCausalLM"]),
        ({"architectures": None, "model_type": "bert"}, ["bert", "LlamaForCausalLM"]),
        ({"attention_bias": True}, ["attention_bias"]),
        ({"mlp_bias": True}, ["mlp_bias"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "gelu"]),
        ({"quantization_config": {"bits": 4}}, ["quantization_config"]),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, ["yarn", "llama3"]),
        ({"rope_parameters": {"rope_theta": 1e5}, "rope_theta": 1e4}, ["rope_theta", "100000"]),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, ["rope_parameters"]),
        ({"rope_parameters": {"rope_type": "linear"}}, ["factor"]),
        ({"rope_parameters": LLAMA3_ROPE | {"low_freq_factor": 4}}, ["low_freq_factor"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor"]),
        ({"num_key_value_heads": 2}, ["num_key_value_heads", "9"]),
        ({"head_dim": 63}, ["head_dim", "63"]),
        ({"vocab_size": None}, ["vocab_size"]),
        ({"hidden_size": "big"}, ["hidden_size", "big"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers"]),
        ({"rms_norm_eps": -1.0}, ["rms_norm_eps"]),
    ],
)
def test_a_model_that_we_cannot_run_is_refused_by_name(
    changes: dict[str, Any], named: list[str]
) -> None:
    with pytest.raises(SetupError) as refused:
        parse_spec(SMOL | changes)

    for word in named:
        assert word in str(refused.value)


def test_a_directory_without_config_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"config\.json"):
        load_spec(tmp_path)


QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def test_qwen3_has_norms_of_its_heads_and_heads_of_128() -> None:
    spec = parse_spec(QWEN3)
    assert spec.family.has_qk_norm
    assert spec.head_dim == 128
    assert spec.token_bytes(2) == 112 * 1024
    assert not parse_spec(SMOL).family.has_qk_norm


@pytest.mark.parametrize(
    "changes",
    [
        {"use_sliding_window": True, "sliding_window": 4096},
        {"layer_types": ["full_attention", "sliding_attention"]},
    ],
)
def test_case_5_5_a_window_of_attention_is_refused(changes: dict[str, Any]) -> None:
    """vllm-project/vllm PR #30887: values outside the window were read all the same."""
    with pytest.raises(SetupError, match="sliding"):
        parse_spec(QWEN3 | changes)


@pytest.mark.parametrize("name", ["qwen3-0.6b", "qwen3-14b", "llama-3.1-8b"])
def test_the_models_of_the_benchmarks_are_ones_that_we_run(name: str) -> None:
    spec = load_spec(Path(__file__).parents[2] / "bench" / "models" / name)
    assert spec.num_kv_heads == 8
    assert spec.head_dim == 128
