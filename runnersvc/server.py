"""The runnersvc process: a model from its directory, on one device."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import structlog
import torch

from runnersvc.config import RunnerConfig
from runnersvc.families import ModelSpec, load_spec
from runnersvc.model_runner import ModelRunner
from runnersvc.serving import serve_model
from servicekit.errors import SetupError
from servicekit.model_dir import fingerprint
from servicekit.plan import RunnerDescription

DEFAULT_KV_BYTES = 2**30

log = structlog.get_logger()


async def serve(config: RunnerConfig) -> None:
    """Run until SIGTERM.

    Errors: SetupError when the address is taken or the model cannot be served; FatalError when a
    plan failed while it was executed.
    """
    await serve_model(config, partial(_load, config))


def _load(config: RunnerConfig) -> tuple[ModelRunner, RunnerDescription]:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise SetupError("--device is cuda, and torch finds no GPU: serve with --device cpu")
    model_dir = Path(config.model)
    spec = load_spec(model_dir)
    dtype: torch.dtype = getattr(torch, config.dtype)
    max_seq_len = min(
        config.max_seq_len or spec.max_position_embeddings, spec.max_position_embeddings
    )
    num_pages = _num_pages(config, spec, dtype)
    model = ModelRunner(
        model_dir,
        spec,
        dtype=dtype,
        device=torch.device(config.device),
        num_pages=num_pages,
        page_size=config.page_size,
        max_running_reqs=config.max_running_reqs,
        max_seq_len=max_seq_len,
        num_threads=config.num_threads,
    )
    description = RunnerDescription(
        model_fingerprint=fingerprint(model_dir),
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        dtype=config.dtype,
        page_size=config.page_size,
        num_pages=num_pages,
        num_rows=config.max_running_reqs,
        max_seq_len=max_seq_len,
        vocab_size=spec.vocab_size,
        rank=0,
        num_ranks=1,
    )
    log.info(
        "model loaded",
        model=str(model_dir),
        dtype=config.dtype,
        num_pages=num_pages,
        page_size=config.page_size,
        pool_tokens=description.pool_tokens,
        kv_bytes=description.pool_tokens * _token_bytes(spec, dtype),
        max_seq_len=max_seq_len,
        threads=torch.get_num_threads(),
    )
    return model, description


def _token_bytes(spec: ModelSpec, dtype: torch.dtype) -> int:
    return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * dtype.itemsize


def _num_pages(config: RunnerConfig, spec: ModelSpec, dtype: torch.dtype) -> int:
    if config.num_pages is not None:
        return config.num_pages
    if config.kv_tokens is not None:
        num_pages = config.kv_tokens // config.page_size
    else:
        page_bytes = config.page_size * _token_bytes(spec, dtype)
        num_pages = (config.kv_bytes or DEFAULT_KV_BYTES) // page_bytes
    if num_pages < 1:
        raise SetupError(
            f"the page pool does not hold one page of {config.page_size} tokens: give it more"
        )
    return num_pages
