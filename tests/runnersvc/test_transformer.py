"""The forward against transformers' own Llama: same weights, same ids, same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from runnersvc.families import load_spec
from runnersvc.rope import inverse_frequencies
from runnersvc.step_arrays import step_arrays, step_of
from tests.runnersvc.tiny_llama import (
    CONFIG,
    SAVE_TINY,
    Row,
    greedy,
    make_plan,
    make_runner,
    prompt,
    random_pages,
    save_tiny_llama,
)

pytestmark = pytest.mark.torch

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "every head its own": {"num_key_value_heads": 6},
    "one kv head": {"num_key_value_heads": 1},
    "wide heads": {"head_dim": 16},
    "other theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "llama3": {"rope_parameters": LLAMA3_ROPE},
    "qwen3": {"head_dim": 16},
}


class Logits:
    """A runner whose logits can be seen: the forward of hand-made steps of one row."""

    def __init__(self, model_dir: Path, page_size: int) -> None:
        self._runner = make_runner(model_dir, page_size=page_size)
        self._runner.execute(
            make_plan(opens=[greedy(3)], write=random_pages([3], page_size=page_size))
        )

    @torch.inference_mode()
    def of(self, cached_len: int, ids: list[int]) -> torch.Tensor:
        plan = make_plan([Row(3, cached_len, ids)])
        step, sampling = step_arrays(plan)
        staged = [torch.from_numpy(array) for array in step]
        runner = self._runner
        page_table, ops = runner._kv_cache.page_table, runner._ops
        hidden = runner._forward(step_of(staged, runner._row_state.last_token, page_table, ops))
        logits: torch.Tensor = runner._transformer.logits(hidden[sampling.tokens])
        return logits[0]


def assert_close_to_reference(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert (ours - theirs).norm() <= 1e-4 * theirs.norm()


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


@pytest.mark.parametrize("name", VARIANTS)
def test_a_whole_prompt_gives_the_logits_of_transformers(tmp_path: Path, name: str) -> None:
    model = SAVE_TINY.get(name, save_tiny_llama)(tmp_path, **VARIANTS[name])
    ids = prompt(41)

    ours = Logits(tmp_path, page_size=4).of(0, ids)

    assert_close_to_reference(ours, reference_logits(model, ids)[-1])


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_chunks_and_single_tokens_give_the_same_logits_as_the_whole(
    tmp_path: Path, page_size: int
) -> None:
    model = save_tiny_llama(tmp_path)
    ids = prompt(41)
    expected = reference_logits(model, ids)
    runner = Logits(tmp_path, page_size)

    cached_len = 0
    for chunk_len in (15, 1, 1, 16, 3, 1, 4):
        ours = runner.of(cached_len, ids[cached_len : cached_len + chunk_len])
        cached_len += chunk_len
        assert_close_to_reference(ours, expected[cached_len - 1])
    assert cached_len == len(ids)


@pytest.mark.parametrize("name", ["tied", "other theta", "linear", "llama3"])
def test_rotary_frequencies_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    config = LlamaConfig(**CONFIG | VARIANTS[name] | {"head_dim": 64})
    config.save_pretrained(tmp_path)
    spec = load_spec(tmp_path)

    ours = inverse_frequencies(spec.rope, spec.head_dim)

    torch.testing.assert_close(ours, LlamaRotaryEmbedding(config).inv_freq, rtol=1e-6, atol=0)
