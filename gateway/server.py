"""The gateway process: public address in front, a session to cachesvc behind; SIGTERM drains."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pagewire.v1 import inference_pb2_grpc

from gateway.cache_client import CacheClient
from gateway.config import GatewayConfig
from gateway.service import InferenceService
from gateway.tokenizer import Tokenizer
from servicekit.host import ServiceHost
from servicekit.model_dir import fingerprint

SERVICE_NAME = "pagewire.v1.InferenceService"


async def serve(config: GatewayConfig) -> None:
    """Run until SIGTERM. Errors: SetupError when the address is taken, or the directory has no
    tokenizer.
    """
    model_dir = Path(config.model)
    changed = asyncio.Event()
    host = ServiceHost(config.listen, [SERVICE_NAME], config.max_message_bytes)
    tokenizer = Tokenizer.load(model_dir)
    client = CacheClient(config.cache, fingerprint(model_dir, config.load_format), changed.set)
    service = InferenceService(client, tokenizer, config.served_name or tokenizer.model_name)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(service, host.grpc_server)
    await host.start(config.parent_fd)

    async def publish_health() -> None:
        while True:
            await changed.wait()
            changed.clear()
            await host.set_serving(serving=client.serving)

    tasks = [asyncio.create_task(client.run()), asyncio.create_task(publish_health())]
    stop = asyncio.create_task(host.wait_for_stop())
    try:
        await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
    finally:
        await host.stop(config.grace_s)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
