"""The runnersvc process: answers health while it loads, serves the manager, drains on SIGTERM."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog
import torch
from pagewire.v1 import runner_pb2_grpc

from runnersvc.config import RunnerConfig
from runnersvc.families import ModelSpec, load_spec
from runnersvc.model_runner import ModelRunner
from runnersvc.runner import Runner
from runnersvc.service import RunnerService
from servicekit.errors import FatalError, SetupError
from servicekit.host import ServiceHost
from servicekit.model_dir import fingerprint
from servicekit.plan import RunnerDescription

SERVICE_NAME = "pagewire.v1.RunnerService"
DEFAULT_KV_BYTES = 2**30
STREAM_END_S = 1.0  # for the last answers to be written

log = structlog.get_logger()


async def serve(config: RunnerConfig) -> None:
    """Run until SIGTERM.

    Errors: SetupError when the address is taken or the model cannot be served; FatalError when a
    plan failed while it was executed.
    """
    service = RunnerService()
    host = ServiceHost(config.listen, [SERVICE_NAME])
    runner_pb2_grpc.add_RunnerServiceServicer_to_server(service, host.grpc_server)
    await host.start(config.parent_fd)
    stop = asyncio.create_task(host.wait_for_stop())
    loading = asyncio.create_task(asyncio.to_thread(_load, config))
    try:
        await asyncio.wait((stop, loading), return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            return
        model, description = loading.result()
        runner = Runner(model, description)
        service.load(runner)
        await host.set_serving(serving=True)
        failed = asyncio.create_task(runner.failed.wait())
        await asyncio.wait((stop, failed), return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            raise FatalError("a plan failed while it was executed; the log above says why")
        await host.within_grace(asyncio.create_task(service.ended()), config.grace_s)
        await service.drain()
        await host.stop(STREAM_END_S)
        runner.stop()
    finally:
        await host.stop(0)


def _load(config: RunnerConfig) -> tuple[ModelRunner, RunnerDescription]:
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
