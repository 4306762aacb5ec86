"""Tiny random models on disk, runners of them, and plans by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from runnersvc.capacity import Capacity
from runnersvc.families import load_spec
from runnersvc.memory import PoolChoice
from runnersvc.model_runner import ModelRunner
from runnersvc.weights import Checkpoint
from servicekit.plan import Int32Array, Plan, RowOpen

Model = TypeVar("Model", bound=PreTrainedModel)

VOCAB = 97
MAX_SEQ_LEN = 96
CONFIG: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # with the usual 0.02 near-ties would decide what is greedy
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
}


def save_tiny_llama(model_dir: Path, **changes: Any) -> LlamaForCausalLM:
    return saved(model_dir, LlamaForCausalLM, LlamaConfig(**CONFIG | changes))


def save_tiny_qwen3(model_dir: Path, **changes: Any) -> Qwen3ForCausalLM:
    return saved(model_dir, Qwen3ForCausalLM, Qwen3Config(**CONFIG | changes))


SAVE_TINY = {"llama": save_tiny_llama, "qwen3": save_tiny_qwen3}


def saved(model_dir: Path, kind: type[Model], config: PretrainedConfig) -> Model:
    """Every parameter is random, norms too: with their usual ones they could be swapped unseen."""
    torch.manual_seed(3)
    model = kind(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(model_dir)
    return model


def make_runner(
    model_dir: Path,
    *,
    page_size: int = 4,
    num_pages: int = 100,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    max_seq_len: int = MAX_SEQ_LEN,
    max_graph_rows: int = 512,
) -> ModelRunner:
    """Of six rows."""
    spec = load_spec(model_dir)
    capacity = Capacity(
        page_size=page_size,
        max_running_reqs=6,
        max_seq_len=max_seq_len,
        max_step_tokens=64,
        max_graph_rows=max_graph_rows,
    )
    on = torch.device(device)
    with Checkpoint(model_dir, spec, dtype, on) as checkpoint:
        pool = PoolChoice(num_pages=num_pages)
        return ModelRunner(checkpoint, spec, capacity, pool, dtype=dtype, device=on)


@dataclass(frozen=True)
class Row:
    """One row of a step; without `ids` its input is the token that it sampled last."""

    table_idx: int
    cached_len: int
    ids: Sequence[int] | None = None
    samples: bool = True


def int32(values: Sequence[int]) -> Int32Array:
    return np.array(values, dtype=np.int32)


def make_plan(
    rows: Sequence[Row] = (),
    *,
    opens: Sequence[RowOpen] = (),
    write: Sequence[tuple[int, int, int]] = (),
) -> Plan:
    """`write` has (table_idx, position, loc) entries."""
    num_literals = [len(row.ids) if row.ids is not None else 0 for row in rows]
    return Plan(
        manager_id="test",
        plan_id=1,
        acked_plan_id=0,
        reset_rows=False,
        close_rows=int32([]),
        open_rows=tuple(opens),
        write_rows=int32([entry[0] for entry in write]),
        write_positions=int32([entry[1] for entry in write]),
        write_locs=int32([entry[2] for entry in write]),
        step_rows=int32([row.table_idx for row in rows]),
        step_cached_lens=int32([row.cached_len for row in rows]),
        step_extend_lens=int32([max(1, n) for n in num_literals]),
        step_num_literals=int32(num_literals),
        step_samples=np.array([row.samples for row in rows], dtype=np.bool_),
        literal_ids=int32([i for row in rows for i in row.ids or ()]),
    )


def greedy(table_idx: int) -> RowOpen:
    return RowOpen(table_idx, prompt_len=1, temperature=0, top_k=0, top_p=1, seed=0, choice=0)


def random_pages(
    table_idxs: Sequence[int], *, page_size: int, num_pages: int = 100, seed: int = 0
) -> list[tuple[int, int, int]]:
    """A table write of whole rows, their pages in random order, as long as there are pages."""
    pages = iter(np.random.default_rng(seed).permutation(num_pages).tolist())
    return [
        (table_idx, first + i, page_id * page_size + i)
        for table_idx in table_idxs
        for first, page_id in zip(range(0, MAX_SEQ_LEN, page_size), pages, strict=False)
        for i in range(page_size)
    ]


def prompt(length: int, seed: int = 0) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, VOCAB, length).tolist()
    return ids
