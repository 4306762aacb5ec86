"""Sends inputs, and judges how each of them ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import NamedTuple

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from servicekit.status import DOMAIN
from tests.fuzz.fuzzed_system import MAX_MESSAGE_BYTES
from tests.fuzz.inputs import Input, input_of

AT_ONCE = 8
HANGS_AFTER_S = 60.0
FAULTS = {"INTERNAL", "UNKNOWN", "UNAVAILABLE", "DATA_LOSS", "ABORTED", "OUT_OF_RANGE"}
OURS_TO_EXPLAIN = {"INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION"}


class End(NamedTuple):
    code: str
    reason: str  # ErrorInfo's; "": there is none
    details: str


class CallFigures:
    def __init__(self) -> None:
        self.kinds: Counter[tuple[str, str]] = Counter()  # by service and kind
        self.codes: Counter[str] = Counter()
        self.findings: list[str] = []

    def note(self, sent: Input, end: End) -> None:
        self.kinds[sent.rpc.name.partition("/")[0], sent.kind] += 1
        self.codes[end.code] += 1
        if (why := _fault(sent, end)) is not None:
            self.findings.append(f"{why}: {end.code} {end.reason} {end.details[:300]!r} | {sent}")


async def send_inputs(address: str, seed: int, count: int, figures: CallFigures) -> None:
    """Inputs 0 to `count` - 1, AT_ONCE of them under way."""
    numbers = iter(range(count))
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]

    async def send_some() -> None:
        async with grpc.aio.insecure_channel(address, options) as channel:
            for number in numbers:
                sent = input_of(seed, number)
                figures.note(sent, await _end_of(channel, sent))

    await asyncio.gather(*(send_some() for _ in range(AT_ONCE)))


async def _end_of(channel: grpc.aio.Channel, sent: Input) -> End:
    multicallable = (channel.unary_stream if sent.rpc.is_stream else channel.unary_unary)(
        sent.rpc.path
    )
    call = multicallable(
        sent.message, timeout=sent.deadline_s or HANGS_AFTER_S, metadata=sent.metadata
    )
    if sent.leaves_after_s is not None:
        asyncio.get_running_loop().call_later(sent.leaves_after_s, call.cancel)
    try:
        if sent.rpc.is_stream:
            async for _ in call:
                pass
        else:
            await call
    except asyncio.CancelledError:
        if sent.leaves_after_s is None:
            raise
        return End("CANCELLED", "", "")
    except grpc.aio.AioRpcError as error:
        return End(error.code().name, _reason_of(error), error.details() or "")
    return End("OK", "", "")


def _reason_of(error: grpc.aio.AioRpcError) -> str:
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # the transport's code in place of ours
        return ""
    found = error_details_pb2.ErrorInfo()
    for detail in () if status is None else status.details:
        if detail.Unpack(found) and found.domain == DOMAIN:
            return str(found.reason)
    return ""


def _fault(sent: Input, end: End) -> str | None:
    """What is wrong with such an end, if anything."""
    if end.code in FAULTS:
        return "no such code"
    if end.code in OURS_TO_EXPLAIN and not end.reason:
        return "a refusal without a reason"
    if end.code == "DEADLINE_EXCEEDED" and sent.deadline_s is None:
        return f"no answer within {HANGS_AFTER_S} s"
    if end.code == "RESOURCE_EXHAUSTED" and len(sent.message) <= MAX_MESSAGE_BYTES:
        return "a bound that it did not reach"
    return None
