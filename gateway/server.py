"""The gateway process: public addresses in front, a session to cachesvc behind; SIGTERM drains."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

import structlog
from pagewire.v1 import inference_pb2_grpc, model_pb2_grpc

from gateway.admin_port import admin_port
from gateway.answering import Answering
from gateway.api_keys import ApiKeys, read_api_keys
from gateway.cache_client import CacheClient
from gateway.config import GatewayConfig
from gateway.front import Front
from gateway.http.app import create_app
from gateway.http.server import HttpServer
from gateway.intake import Intake
from gateway.key_interceptor import KeyInterceptor
from gateway.live_requests import LiveRequests
from gateway.local_address import is_local
from gateway.model_service import ModelService
from gateway.served_model import ServedModel
from gateway.service import InferenceService
from gateway.tcp_listener import listener
from gateway.tokenizer import Tokenizer
from gateway.totals import Totals
from servicekit.errors import Reason, Unavailable
from servicekit.host import ServiceHost
from servicekit.model_dir import fingerprint
from servicekit.reader_patience import MAX_STALL_S
from servicekit.tls import Tls

log = structlog.get_logger()

SERVICE_NAMES = ("pagewire.v1.InferenceService", "pagewire.v1.ModelService")
SMG_NAMES = ("vllm.grpc.engine.VllmEngine",)


async def serve(config: GatewayConfig) -> None:
    """Run until SIGTERM. Errors: SetupError when keys or certificates cannot be read, an address is
    taken, or the directory has no tokenizer.
    """
    tls = Tls.read(config.tls_cert, config.tls_key, config.tls_client_ca)
    keys = None if config.api_key_file is None else ApiKeys(read_api_keys(config.api_key_file))
    if keys is None and config.tls_client_ca is None:
        _warn_if_open_to_others(config)
    http_socket = None if config.http is None else listener(config.http, "--http")
    model_dir = Path(config.model)
    changed = asyncio.Event()
    names = SERVICE_NAMES + (SMG_NAMES if config.smg else ())
    live, totals = LiveRequests(), Totals()
    host = ServiceHost(
        config.listen,
        names,
        config.max_message_bytes,
        max_stall_s=MAX_STALL_S,
        interceptors=[] if keys is None else [KeyInterceptor(keys, totals)],
        tls=tls,
    )
    tokenizer = Tokenizer.load(model_dir)
    client = CacheClient(
        config.cache,
        fingerprint(model_dir, config.load_format),
        changed.set,
        max_outage_s=config.max_outage_s,
        manager_silence_s=config.manager_silence_s,
    )
    model = ServedModel.read(model_dir, config.served_name or tokenizer.model_name, tokenizer)
    intake = Intake(config.max_live_requests, config.max_request_s)
    answering = Answering(client, tokenizer, live, totals, intake)
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
        app = create_app(front, config.max_message_bytes, keys)
        http = HttpServer(http_socket, app, front.cut, tls)
    async with admin_port(config, client, intake, host) as hosts:
        await host.start(config.parent_fd)
        await _serve_until_stop(config, client, changed, hosts, http, live)


async def _serve_until_stop(
    config: GatewayConfig,
    client: CacheClient,
    changed: asyncio.Event,
    hosts: list[ServiceHost],
    http: HttpServer | None,
    live: LiveRequests,
) -> None:
    """The first of `hosts` is the public one; the others have their health from here alone. `live`
    are told when there is no more time.
    """

    async def publish_health() -> None:
        while True:
            await changed.wait()
            changed.clear()
            for each in hosts:
                await each.set_serving(serving=client.serving)

    host = hosts[0]
    tasks = [asyncio.create_task(client.run()), asyncio.create_task(publish_health())]
    if http is not None:
        tasks.append(http.start())
    stop = asyncio.create_task(host.wait_for_stop())
    try:
        await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in hosts:
            await each.drain()
        no_time = Unavailable(Reason.DRAINING, "the server stops: send the request to another one")
        ends = [host.stop(config.grace_s, partial(live.end_all, no_time))]
        if http is not None:
            ends.append(http.stop(host.within_grace, config.grace_s))
        await asyncio.gather(*ends)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


def _warn_if_open_to_others(config: GatewayConfig) -> None:
    addresses = filter(None, (config.listen, config.http))
    if reached := [address for address in addresses if not is_local(address)]:
        log.warning(
            "whoever reaches us may use the model; --api-key-file asks for keys",
            addresses=", ".join(reached),
        )
