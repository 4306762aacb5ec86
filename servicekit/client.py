"""The client side of a long stream between two services: how it comes up, and comes up again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import grpc
import structlog

log = structlog.get_logger()

FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 0.2  # between services: what waits is answers


class Ended(NamedTuple):
    """How an attempt ended: whether the stream was up at all, and why it is no more."""

    was_up: bool
    why: str


def stream_channel(address: str, window_bytes: int | None = None) -> grpc.aio.Channel:
    """A channel for one long stream: messages of any length, quick to connect again, no retries of
    gRPC's own. With `window_bytes` the peer's writes wait once so many bytes are unread here, or
    one message if that is longer; else gRPC chooses, and grows it.

    A peer that says nothing for 15 s is pinged, and one that leaves a ping unanswered for 20 s is
    gone, whatever its socket says. More often than every ten seconds a `ServiceHost` takes pings
    for an attack.
    """
    window: list[tuple[str, int]] = []
    if window_bytes is not None:
        window = [("grpc.http2.lookahead_bytes", window_bytes), ("grpc.http2.bdp_probe", 0)]
    return grpc.aio.insecure_channel(
        address,
        options=[
            *window,
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.enable_retries", 0),
            ("grpc.keepalive_time_ms", 15_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.http2.ping_timeout_ms", 20_000),  # counts too, and is 60 s by default
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 200),
            ("grpc.use_local_subchannel_pool", 1),
        ],
    )


async def keep_up(stream: Callable[[], Awaitable[Ended]], event: str) -> None:
    """Run `stream` again and again, with growing waits while it does not come up, until cancelled.

    Logs `event` with the reason each time that the reason changes.
    """
    wait_s, said = FIRST_RETRY_S, ""
    while True:
        ended = await stream()
        if ended.was_up:
            wait_s, said = FIRST_RETRY_S, ""
        if ended.why != said:
            log.info(event, reason=ended.why)
            said = ended.why
        await asyncio.sleep(wait_s)
        wait_s = min(wait_s * 2, LONGEST_RETRY_S)
