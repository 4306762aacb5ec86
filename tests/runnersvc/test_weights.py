from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from runnersvc.families import load_spec
from runnersvc.weights import Checkpoint, expected_shapes
from servicekit.errors import SetupError
from tests.runnersvc.tiny_llama import save_tiny_llama

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
WEIGHTS = "model.safetensors"


def read(model_dir: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Everything loaded, by the checkpoint's names; fused matrices by those of their parts."""
    loaded = {}
    with Checkpoint(model_dir, load_spec(model_dir), dtype, CPU) as checkpoint:
        model = checkpoint.model()
        loaded["model.embed_tokens.weight"] = model.embedding
        loaded["model.norm.weight"] = model.final_norm
        loaded["lm_head.weight"] = model.head
        for n, layer in enumerate(checkpoint.layers()):
            p = f"model.layers.{n}."
            q, k, v = layer.qkv.split([48, 16, 16])
            gate, up = layer.gate_up.split(80)
            loaded |= {
                p + "input_layernorm.weight": layer.attention_norm,
                p + "self_attn.q_proj.weight": q,
                p + "self_attn.k_proj.weight": k,
                p + "self_attn.v_proj.weight": v,
                p + "self_attn.o_proj.weight": layer.o,
                p + "post_attention_layernorm.weight": layer.mlp_norm,
                p + "mlp.gate_proj.weight": gate,
                p + "mlp.up_proj.weight": up,
                p + "mlp.down_proj.weight": layer.down,
            }
    return loaded


def change(model_dir: Path, **changed: torch.Tensor | None) -> None:
    """Saves the weights again with some tensors replaced, added, or (None) taken away."""
    stored = load_file(model_dir / WEIGHTS)
    kept = {name: tensor for name, tensor in (stored | changed).items() if tensor is not None}
    save_file(kept, model_dir / WEIGHTS)


def shard(model_dir: Path) -> tuple[Path, Path]:
    """Splits the one file into two with an index."""
    stored = load_file(model_dir / WEIGHTS)
    (model_dir / WEIGHTS).unlink()
    files = {name: f"model-0000{1 + n % 2}-of-00002.safetensors" for n, name in enumerate(stored)}
    for file in set(files.values()):
        save_file({n: t for n, t in stored.items() if files[n] == file}, model_dir / file)
    index = {"metadata": {}, "weight_map": files}
    (model_dir / "model.safetensors.index.json").write_text(json.dumps(index))
    first, second = sorted(set(files.values()))
    return model_dir / first, model_dir / second


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("sharded", [True, False])
def test_every_parameter_is_the_stored_tensor(tmp_path: Path, tied: bool, sharded: bool) -> None:
    model = save_tiny_llama(tmp_path, tie_word_embeddings=tied)
    if sharded:
        shard(tmp_path)

    loaded = read(tmp_path)

    expected = model.state_dict()
    assert loaded.keys() == expected.keys()
    for name, tensor in loaded.items():
        assert torch.equal(tensor, expected[name]), name


def test_the_expected_shapes_are_those_that_transformers_stores(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, tie_word_embeddings=False)

    stored = {name: tuple(t.shape) for name, t in load_file(tmp_path / WEIGHTS).items()}

    assert expected_shapes(load_spec(tmp_path)) == stored


def test_weights_are_converted_to_the_wanted_dtype(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path)

    loaded = read(tmp_path, torch.bfloat16)

    for name, tensor in loaded.items():
        assert torch.equal(tensor, model.state_dict()[name].bfloat16()), name


def test_tensors_that_follow_from_the_config_are_ignored(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    change(
        tmp_path,
        **{
            "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
            "lm_head.weight": torch.zeros(97, 48),
        },
    )

    loaded = read(tmp_path)

    assert loaded["lm_head.weight"] is loaded["model.embed_tokens.weight"]


@pytest.mark.parametrize(
    ("name", "tensor", "said"),
    [
        ("model.layers.1.mlp.up_proj.weight", None, "lack"),
        ("model.norm.weight", torch.ones(49), r"\(49,\).*\(48,\)"),
        ("model.norm.weight", torch.ones(48, dtype=torch.int64), "int64"),
        ("model.layers.0.self_attn.q_proj.bias", torch.ones(48), "no place"),
        ("model.layers.2.mlp.up_proj.weight", torch.ones(80, 48), "no place"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    tmp_path: Path, name: str, tensor: torch.Tensor | None, said: str
) -> None:
    save_tiny_llama(tmp_path)
    change(tmp_path, **{name: tensor})

    with pytest.raises(SetupError, match=said) as refused:
        read(tmp_path)
    assert name in str(refused.value)


def test_an_untied_model_without_its_head_is_refused(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, tie_word_embeddings=False)
    change(tmp_path, **{"lm_head.weight": None})

    with pytest.raises(SetupError, match=r"lm_head\.weight"):
        read(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    _, second = shard(tmp_path)
    second.unlink()

    with pytest.raises(SetupError, match=second.name):
        read(tmp_path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    first, _ = shard(tmp_path)
    first.write_bytes(first.read_bytes()[:-100])

    with pytest.raises(SetupError, match=first.name):
        read(tmp_path)


def test_a_tensor_in_two_files_is_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    save_file({"model.norm.weight": torch.ones(48)}, tmp_path / "more.safetensors")

    with pytest.raises(SetupError, match=r"model\.norm\.weight"):
        read(tmp_path)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    (tmp_path / WEIGHTS).unlink()

    with pytest.raises(SetupError, match="safetensors"):
        read(tmp_path)
