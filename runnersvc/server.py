"""The runnersvc process: a model from its directory, on one device."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import structlog
import torch

from runnersvc.capacity import Capacity
from runnersvc.config import RunnerConfig
from runnersvc.dummy_weights import DummyWeights
from runnersvc.families import ModelSpec, load_spec
from runnersvc.memory import PoolChoice, check_weights_fit
from runnersvc.model_runner import ModelRunner
from runnersvc.ops import check_kernels
from runnersvc.serving import serve_model
from runnersvc.weights import Checkpoint, Weights, weight_bytes
from servicekit.errors import SetupError
from servicekit.model_dir import fingerprint
from servicekit.plan import RunnerDescription

log = structlog.get_logger()


async def serve(config: RunnerConfig) -> None:
    """Run until SIGTERM.

    Errors: SetupError when the model cannot be served, if possible before the address is taken, or
    the address is taken; FatalError when a plan failed while it was executed.
    """
    spec = checked(config)
    await serve_model(config, partial(load, config, spec))


def checked(config: RunnerConfig) -> ModelSpec:
    """The model's shape, once what can be known without loading it speaks for serving it.

    Errors: SetupError for a model directory, a device or a card's memory that does not do.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise SetupError("--device is cuda, and torch finds no GPU: serve with --device cpu")
    spec = load_spec(Path(config.model))
    dtype = _dtype(config)
    if config.device == "cuda":
        check_kernels(spec.head_dim, spec.num_heads // spec.num_kv_heads, dtype)
        check_weights_fit(weight_bytes(spec, dtype), config.gpu_memory_fraction)
    return spec


def load(config: RunnerConfig, spec: ModelSpec) -> tuple[ModelRunner, RunnerDescription]:
    """The model, ready to execute plans. Errors: SetupError."""
    model_dir = Path(config.model)
    dtype, device = _dtype(config), torch.device(config.device)
    max_seq_len = min(
        config.max_seq_len or spec.max_position_embeddings, spec.max_position_embeddings
    )
    capacity = Capacity(
        page_size=config.page_size,
        max_running_reqs=config.max_running_reqs,
        max_seq_len=max_seq_len,
        max_step_tokens=max(config.max_step_tokens, config.max_running_reqs + 1),
        max_graph_rows=config.max_graph_rows,
    )
    pool = PoolChoice(
        config.num_pages, config.kv_tokens, config.kv_bytes, config.gpu_memory_fraction
    )
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    with ExitStack() as opened:
        weights: Weights
        if config.load_format == "dummy":
            weights = DummyWeights(spec, dtype, device)
        else:
            weights = opened.enter_context(Checkpoint(model_dir, spec, dtype, device))
        model = ModelRunner(weights, spec, capacity, pool, dtype=dtype, device=device)
    description = RunnerDescription(
        model_fingerprint=fingerprint(model_dir, config.load_format),
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        dtype=config.dtype_name,
        page_size=config.page_size,
        num_pages=model.num_pages,
        num_rows=config.max_running_reqs,
        max_seq_len=max_seq_len,
        vocab_size=spec.vocab_size,
        rank=0,
        num_ranks=1,
        max_step_tokens=capacity.max_step_tokens,
    )
    log.info(
        "model loaded",
        model=str(model_dir),
        device=config.device,
        dtype=config.dtype_name,
        page_size=config.page_size,
        pool_tokens=description.pool_tokens,
        max_seq_len=max_seq_len,
        threads=torch.get_num_threads(),
    )
    return model, description


def _dtype(config: RunnerConfig) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, config.dtype_name)
    return dtype
