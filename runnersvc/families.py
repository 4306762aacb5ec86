"""The model families we run, one declarative description each, and the reading of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from servicekit.errors import SetupError
from servicekit.model_dir import read_config

Config: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """What the models of one architecture have in common, beyond the numbers in their config."""

    model_type: str  # config.json's name of it
    architecture: str  # the class name under `architectures`
    default_rope_theta: float
    must_be_false: tuple[str, ...]  # settings that would change the arithmetic
    has_qk_norm: bool = False  # each head of Q and of K is RMS-normalised before it is rotated
    default_head_dim: int | None = None  # None: hidden_size shared by the heads


LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    default_rope_theta=10000.0,
    must_be_false=("attention_bias", "mlp_bias"),
)
QWEN3 = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    default_rope_theta=10000.0,
    must_be_false=("attention_bias", "use_sliding_window"),
    has_qk_norm=True,
    default_head_dim=128,
)
FAMILIES = (LLAMA, QWEN3)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, others in between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_seq_len: int

    def __post_init__(self) -> None:
        if self.low_freq_factor >= self.high_freq_factor:
            raise SetupError(
                f"config.json has low_freq_factor {self.low_freq_factor}, which must be less than "
                f"high_freq_factor {self.high_freq_factor}"
            )


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All wavelengths are stretched by `factor` (position interpolation)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: the base of its frequencies and how they are scaled."""

    theta: float
    scaling: Llama3Scaling | LinearScaling | None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The shape of one model, as its config.json states it."""

    family: Family
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_dim: int
    intermediate_dim: int
    vocab_size: int
    rms_eps: float
    rope: Rope
    tie_word_embeddings: bool
    max_position_embeddings: int

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise SetupError(
                f"config.json has num_attention_heads {self.num_heads}, which is no multiple of "
                f"num_key_value_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise SetupError(
                f"config.json has head_dim {self.head_dim}; rotary embedding needs an even one"
            )

    def token_bytes(self, number_bytes: int) -> int:
        """K and V of one token in all layers, for numbers of `number_bytes`."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * number_bytes


def load_spec(model_dir: Path) -> ModelSpec:
    """The spec of the model in `model_dir`; SetupError if its config.json is missing or refused."""
    return parse_spec(read_config(model_dir))


def parse_spec(config: Config) -> ModelSpec:
    """The spec that a config.json describes; SetupError names a setting that we cannot honour."""
    family = _find_family(config)
    for name in family.must_be_false:
        if config.get(name):
            raise SetupError(
                f"config.json has {name} true, which {family.architecture} is not run with here"
            )
    if config.get("quantization_config"):
        raise SetupError(
            "config.json has a quantization_config: quantized weights are not supported"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise SetupError(
            f"config.json has hidden_act {config['hidden_act']!r}; only 'silu' is supported"
        )
    if "sliding_attention" in (config.get("layer_types") or ()):
        raise SetupError(
            "config.json has layer_types with sliding_attention: attention windows are not "
            "supported"
        )
    num_heads = _positive(config, "num_attention_heads")
    hidden_dim = _positive(config, "hidden_size")
    return ModelSpec(
        family=family,
        num_layers=_positive(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_positive(config, "num_key_value_heads", default=num_heads),
        head_dim=_positive(
            config, "head_dim", default=family.default_head_dim or hidden_dim // num_heads
        ),
        hidden_dim=hidden_dim,
        intermediate_dim=_positive(config, "intermediate_size"),
        vocab_size=_positive(config, "vocab_size"),
        rms_eps=_number(config, "rms_norm_eps", default=1e-6),
        rope=_parse_rope(config, family),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        max_position_embeddings=_positive(config, "max_position_embeddings", default=2048),
    )


def _find_family(config: Config) -> Family:
    """By architecture, or by model_type where a config names no architecture."""
    architectures = config.get("architectures") or []
    for family in FAMILIES:
        if family.architecture in architectures:
            return family
        if not architectures and config.get("model_type") == family.model_type:
            return family
    named = architectures[0] if architectures else f"model_type {config.get('model_type')!r}"
    supported = ", ".join(family.architecture for family in FAMILIES)
    raise SetupError(f"the architecture {named} is not supported; supported are: {supported}")


def _parse_rope(config: Config, family: Family) -> Rope:
    """From `rope_parameters`, once called `rope_scaling`, and a `rope_theta` in or beside it."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        raise SetupError("config.json's rope_parameters are not one plain JSON object")
    thetas = {
        _number(where, "rope_theta")
        for where in (config, rope)
        if where.get("rope_theta") is not None
    }
    if len(thetas) > 1:
        raise SetupError(f"config.json gives two values of rope_theta: {sorted(thetas)}")
    for where in (config, rope):
        if where.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise SetupError("config.json has a partial_rotary_factor, which is not supported")
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    scaling: Llama3Scaling | LinearScaling | None
    match rope_type:
        case "default":
            scaling = None
        case "linear":
            scaling = LinearScaling(_number(rope, "factor"))
        case "llama3":
            scaling = Llama3Scaling(
                factor=_number(rope, "factor"),
                low_freq_factor=_number(rope, "low_freq_factor"),
                high_freq_factor=_number(rope, "high_freq_factor"),
                original_max_seq_len=_original_max_seq_len(config, rope),
            )
        case _:
            raise SetupError(
                f"config.json has rope_type {rope_type!r}; supported are: default, linear, llama3"
            )
    return Rope(theta=thetas.pop() if thetas else family.default_rope_theta, scaling=scaling)


def _original_max_seq_len(config: Config, rope: Config) -> int:
    """The context that the model was made for before it was stretched; a top-level value wins."""
    name = "original_max_position_embeddings"
    for where in (config, rope):
        if where.get(name) is not None:
            return _positive(where, name)
    return _positive(config, "max_position_embeddings")


def _positive(config: Config, name: str, *, default: int | None = None) -> int:
    given = config.get(name)
    if given is None:
        given = default
    if given is None:
        raise SetupError(f"config.json lacks {name}")
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise SetupError(f"config.json has {name} {given!r}; it must be a positive integer")
    return given


def _number(config: Config, name: str, *, default: float | None = None) -> float:
    given = config.get(name)
    if given is None:
        given = default
    if given is None:
        raise SetupError(f"config.json lacks {name}")
    if not isinstance(given, int | float) or isinstance(given, bool) or given <= 0:
        raise SetupError(f"config.json has {name} {given!r}; it must be a positive number")
    return float(given)
