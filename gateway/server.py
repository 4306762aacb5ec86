"""The gateway process: public addresses in front, a session to cachesvc behind; SIGTERM drains."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from pagewire.v1 import inference_pb2_grpc, model_pb2_grpc

from gateway.answering import Answering
from gateway.cache_client import CacheClient
from gateway.config import GatewayConfig
from gateway.http.app import create_app
from gateway.http.front import Front
from gateway.http.server import HttpServer
from gateway.live_requests import LiveRequests
from gateway.model_service import ModelService
from gateway.served_model import ServedModel
from gateway.service import InferenceService
from gateway.tcp_listener import listener
from gateway.tokenizer import Tokenizer
from gateway.totals import Totals
from servicekit.host import ServiceHost
from servicekit.model_dir import fingerprint

SERVICE_NAMES = ("pagewire.v1.InferenceService", "pagewire.v1.ModelService")
SMG_NAMES = ("vllm.grpc.engine.VllmEngine",)


async def serve(config: GatewayConfig) -> None:
    """Run until SIGTERM. Errors: SetupError when an address is taken, or the directory has no
    tokenizer.
    """
    http_socket = None if config.http is None else listener(config.http, "--http")
    model_dir = Path(config.model)
    changed = asyncio.Event()
    names = SERVICE_NAMES + (SMG_NAMES if config.smg else ())
    host = ServiceHost(config.listen, names, config.max_message_bytes)
    tokenizer = Tokenizer.load(model_dir)
    client = CacheClient(config.cache, fingerprint(model_dir, config.load_format), changed.set)
    model = ServedModel.read(model_dir, config.served_name or tokenizer.model_name, tokenizer)
    live, totals = LiveRequests(), Totals()
    answering = Answering(client, tokenizer, live, totals)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(
        InferenceService(answering, tokenizer, model.name, live, totals), host.grpc_server
    )
    created_s = time.time()
    model_pb2_grpc.add_ModelServiceServicer_to_server(
        ModelService(client, model, created_s=created_s), host.grpc_server
    )
    front = Front(
        model=model,
        created_s=int(created_s),
        tokenizer=tokenizer,
        chain=client,
        answering=answering,
        totals=totals,
    )
    if config.smg:
        from gateway.smg.service import add_engine  # needs the extra

        add_engine(host.grpc_server, front, live, model_dir, config.cache)
    http: HttpServer | None = None
    if http_socket is not None:
        http = HttpServer(http_socket, create_app(front, config.max_message_bytes), front.cut)
    await host.start(config.parent_fd)

    async def publish_health() -> None:
        while True:
            await changed.wait()
            changed.clear()
            await host.set_serving(serving=client.serving)

    tasks = [asyncio.create_task(client.run()), asyncio.create_task(publish_health())]
    if http is not None:
        tasks.append(http.start())
    stop = asyncio.create_task(host.wait_for_stop())
    try:
        await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
    finally:
        ends = [host.stop(config.grace_s)]
        if http is not None:
            ends.append(http.stop(host.within_grace, config.grace_s))
        await asyncio.gather(*ends)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
