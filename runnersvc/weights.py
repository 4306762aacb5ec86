"""From safetensors files to parameters: each loaded once, nothing left over unnoticed.

Format: https://huggingface.co/docs/safetensors, one file, or several and an index of tensors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from runnersvc.families import ModelSpec
from servicekit.errors import SetupError
from servicekit.model_dir import weight_files

IGNORED = re.compile(r"rotary_emb\.inv_freq$")  # older checkpoints store it; config.json has it
HEAD = "lm_head.weight"

Load: TypeAlias = Callable[..., Tensor]  # the tensors of some names, one below the other


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Matrices are [out, in]."""

    attention_norm: Tensor  # [hidden]
    qkv: Tensor  # [(num_heads + 2 * num_kv_heads) * head_dim, hidden]: all q, all k, all v
    q_norm: Tensor | None  # [head_dim], with k_norm, in families that have them
    k_norm: Tensor | None
    o: Tensor  # [hidden, num_heads * head_dim]
    mlp_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * intermediate, hidden]: all gates first
    down: Tensor  # [hidden, intermediate]


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """The model outside its layers; with tied embeddings `head` is `embedding`."""

    embedding: Tensor  # [vocab, hidden]
    final_norm: Tensor  # [hidden]
    head: Tensor  # [vocab, hidden]


class Checkpoint:
    """The safetensors of a model directory, checked against its spec before anything is read.

    SetupError names the file or tensor that is missing, broken, unexpected, or of the wrong shape.
    The files stay open, and mapped, until the context ends.
    """

    def __init__(
        self, model_dir: Path, spec: ModelSpec, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._spec, self._dtype, self._device = spec, dtype, device
        self._file_of: dict[str, Any] = {}  # tensor name -> the open file that holds it
        with ExitStack() as opening:
            for path in weight_files(model_dir):
                self._open(opening, path)
            self._check_names_and_shapes(model_dir)
            self._exit = opening.pop_all()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self._exit.close()

    def model(self) -> ModelWeights:
        """The weights outside the layers."""
        return outside_layers(self._spec, self._load)

    def layers(self) -> Iterator[LayerWeights]:
        """The layers in order, each read when it is asked for."""
        return every_layer(self._spec, self._load)

    def _open(self, opening: ExitStack, path: Path) -> None:
        try:
            file = opening.enter_context(safe_open(path, framework="pt"))
        except SafetensorError as error:
            raise SetupError(f"{path} is not a whole safetensors file: {error}") from error
        for name in file.keys():  # noqa: SIM118 - the file is no mapping
            if name in self._file_of:
                raise SetupError(f"{path} holds {name} again: a tensor must be in one file only")
            self._file_of[name] = file

    def _check_names_and_shapes(self, model_dir: Path) -> None:
        expected = expected_shapes(self._spec)
        for name, shape in expected.items():
            if name not in self._file_of:
                raise SetupError(f"the weights in {model_dir} lack the tensor {name}")
            stored = tuple(self._file_of[name].get_slice(name).get_shape())
            if stored != shape:
                raise SetupError(
                    f"the tensor {name} in {model_dir} has the shape {stored}; "
                    f"config.json asks for {shape}"
                )
        for name in self._file_of:
            ignored = IGNORED.search(name) or (name == HEAD and self._spec.tie_word_embeddings)
            if name not in expected and not ignored:
                raise SetupError(
                    f"the weights in {model_dir} hold the tensor {name}, which has no place"
                )

    def _load(self, *names: str) -> Tensor:
        """The tensors one below the other, as one parameter in our dtype on our device."""
        parts: list[Tensor] = [self._file_of[name].get_tensor(name) for name in names]
        for name, part in zip(names, parts, strict=True):
            if not part.is_floating_point():
                raise SetupError(
                    f"the tensor {name} is stored as {part.dtype}; only floats are supported"
                )
        if len(parts) == 1:
            return parts[0].to(self._device, self._dtype, copy=True)
        return torch.cat([part.to(self._device, self._dtype) for part in parts])


class Weights(Protocol):
    """Where a transformer's parameters come from: a checkpoint, or nowhere."""

    def model(self) -> ModelWeights: ...
    def layers(self) -> Iterator[LayerWeights]: ...


def outside_layers(spec: ModelSpec, load: Load) -> ModelWeights:
    """What `load` has outside the layers."""
    embedding = load("model.embed_tokens.weight")
    head = embedding if spec.tie_word_embeddings else load(HEAD)
    return ModelWeights(embedding=embedding, final_norm=load("model.norm.weight"), head=head)


def every_layer(spec: ModelSpec, load: Load) -> Iterator[LayerWeights]:
    """What `load` has of the layers, in order, each loaded when it is asked for."""
    for layer_idx in range(spec.num_layers):
        p = f"model.layers.{layer_idx}."
        attn, mlp = p + "self_attn.", p + "mlp."
        has_qk_norm = spec.family.has_qk_norm
        yield LayerWeights(
            attention_norm=load(p + "input_layernorm.weight"),
            qkv=load(*(f"{attn}{name}_proj.weight" for name in "qkv")),
            q_norm=load(attn + "q_norm.weight") if has_qk_norm else None,
            k_norm=load(attn + "k_norm.weight") if has_qk_norm else None,
            o=load(attn + "o_proj.weight"),
            mlp_norm=load(p + "post_attention_layernorm.weight"),
            gate_up=load(mlp + "gate_proj.weight", mlp + "up_proj.weight"),
            down=load(mlp + "down_proj.weight"),
        )


def weight_bytes(spec: ModelSpec, dtype: torch.dtype) -> int:
    """Of all parameters of `spec`."""
    return sum(math.prod(shape) for shape in expected_shapes(spec).values()) * dtype.itemsize


def expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint of `spec` must hold, by its stored name."""
    hidden, inner = spec.hidden_dim, spec.intermediate_dim
    q_dim, kv_dim = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    of_a_layer = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (q_dim, hidden),
        "self_attn.k_proj": (kv_dim, hidden),
        "self_attn.v_proj": (kv_dim, hidden),
        "self_attn.o_proj": (hidden, q_dim),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (spec.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if spec.family.has_qk_norm:
        of_a_layer |= {f"self_attn.{name}_norm": (spec.head_dim,) for name in "qk"}
    if not spec.tie_word_embeddings:
        shapes[HEAD] = (spec.vocab_size, hidden)
    for layer_idx in range(spec.num_layers):
        for name, shape in of_a_layer.items():
            shapes[f"model.layers.{layer_idx}.{name}.weight"] = shape
    return shapes
