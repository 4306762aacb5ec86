"""Turns a GGUF file of a Llama-like model into a float32 model directory.

    python -m runnersvc.convert_gguf SRC.gguf OUT_DIR

A process of its own, run by `pagewire fetch`: what it needs (gguf) is nobody else's, and its memory
goes with it. Prints a progress bar on a terminal and nothing else; failures are one sentence and
exit code 2. Its output depends on the file alone, to the byte.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tqdm import tqdm

from runnersvc.gguf_tokenizer import write_tokenizer
from servicekit.errors import SetupError

Float32Array = NDArray[np.float32]

OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(source: Path, out_dir: Path) -> None:
    """Writes config.json, generation_config.json, tokenizer files and model.safetensors into
    `out_dir`.
    """
    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    architecture = fields["general.architecture"]
    if architecture != "llama":
        raise SetupError(f"{source} holds a {architecture} model; only llama can be converted")
    out_dir.mkdir(exist_ok=True)
    tensor_names = {tensor.name for tensor in reader.tensors}
    config = config_of(fields, tied="output.weight" not in tensor_names)
    generation_config = {
        key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")
    }
    _write_json(out_dir / "config.json", config)
    _write_json(out_dir / "generation_config.json", generation_config)
    write_tokenizer(fields, out_dir)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights: dict[str, Float32Array] = {}
    for tensor in tqdm(reader.tensors, desc="converting", unit="tensor", disable=None):
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        num_heads = heads.get(tensor.name.split(".")[-2])
        weights[hf_name(tensor.name)] = (
            values if num_heads is None else unpermute(values, num_heads)
        )
    save_file(weights, out_dir / "model.safetensors", metadata={"format": "pt"})
    (out_dir / "model.safetensors").chmod(0o644)


def config_of(fields: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """config.json of a Llama model, from the metadata of its GGUF file."""
    hidden_size = fields["llama.embedding_length"]
    num_heads = fields["llama.attention.head_count"]
    rope = {"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "dtype": "float32",
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "head_dim": hidden_size // num_heads,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "mlp_bias": False,
        "num_attention_heads": num_heads,
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": rope,
        "tie_word_embeddings": tied,
        "use_cache": True,
        "vocab_size": fields["llama.vocab_size"],
    }


def hf_name(gguf_name: str) -> str:
    """What transformers calls a tensor: blk.3.attn_q.weight →
    model.layers.3.self_attn.q_proj.weight.
    """
    if gguf_name in OUTER_NAMES:
        return OUTER_NAMES[gguf_name]
    parts = gguf_name.split(".")
    if len(parts) != 4 or parts[0] != "blk" or parts[2] not in LAYER_NAMES or parts[3] != "weight":
        raise SetupError(f"the GGUF file has a tensor {gguf_name} that no Llama model has")
    return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.weight"


def unpermute(values: Float32Array, num_heads: int) -> Float32Array:
    """Undoes GGUF's order of rotary dimensions: pairs (2i, 2i + 1) of a head become (i, i +
    head_dim/2).
    """
    half = values.shape[0] // num_heads // 2
    pairs = values.reshape(num_heads, half, 2, values.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: python -m runnersvc.convert_gguf SRC.gguf OUT_DIR", file=sys.stderr)
        return 2
    try:
        convert(Path(arguments[0]), Path(arguments[1]))
    except (SetupError, OSError, ValueError, KeyError) as error:
        print(f"{arguments[0]} cannot be converted: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
