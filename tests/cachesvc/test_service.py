"""Sessions of gateways: opening, requests, leaving."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from pagewire.v1 import cache_pb2 as pb

from servicekit.errors import FailedPrecondition, InvalidArgument, Reason, Unavailable
from tests.cachesvc.chain import Chain, answer, chain_of
from tests.cachesvc.gateway_client import Gateway
from tests.cachesvc.rpc import failure_of
from tests.log_lines import log_lines


@pytest.fixture
async def chain() -> AsyncIterator[Chain]:
    async with chain_of() as chain:
        yield chain


class TestOpen:
    async def test_it_is_answered_with_the_limits_of_the_runner(self, chain: Chain) -> None:
        gateway = await chain.gateway()
        limits = gateway.opened[-1].limits
        assert (limits.max_seq_len, limits.vocab_size, limits.pool_tokens) == (24, 16, 64)

    async def test_another_protocol_version_is_refused(self, chain: Chain) -> None:
        gateway = Gateway(chain.channel)
        await gateway.open(protocol_version=3)
        error = await failure_of(gateway.call)
        assert isinstance(error, FailedPrecondition)
        assert error.reason is Reason.PROTOCOL_VERSION
        assert error.metadata == {"field": "open.protocol_version"}
        assert "open.protocol_version is 3; this manager speaks 1" in error.message

    async def test_another_fingerprint_is_refused(self, chain: Chain) -> None:
        await chain.gateway()
        gateway = Gateway(chain.channel)
        await gateway.open(model_fingerprint="another")
        error = await failure_of(gateway.call)
        assert isinstance(error, FailedPrecondition)
        assert error.reason is Reason.FINGERPRINT_MISMATCH
        assert error.metadata == {"field": "open.model_fingerprint"}
        assert "another" in error.message
        assert "tiny" in error.message

    async def test_another_first_message_is_refused(self, chain: Chain) -> None:
        gateway = Gateway(chain.channel)
        await gateway.submit(1)
        error = await failure_of(gateway.call)
        assert isinstance(error, InvalidArgument)
        assert (error.reason, error.metadata) == (Reason.PROTOCOL_VIOLATION, {"field": "open"})

    async def test_a_second_open_ends_the_session(self, chain: Chain) -> None:
        gateway = await chain.gateway()
        await gateway.open()
        error = await failure_of(gateway.call)
        assert isinstance(error, InvalidArgument)
        assert error.reason is Reason.PROTOCOL_VIOLATION

    async def test_while_draining_it_is_refused(self, chain: Chain) -> None:
        chain.service.drain()
        gateway = Gateway(chain.channel)
        await gateway.open()
        error = await failure_of(gateway.call)
        assert isinstance(error, Unavailable)
        assert error.reason is Reason.DRAINING


class TestRequests:
    async def test_one_is_accepted_and_answered(self, chain: Chain) -> None:
        gateway = await chain.gateway()
        await gateway.submit(1, max_tokens=5)
        await gateway.until_finished(1)
        assert gateway.accepted == [1]
        assert gateway.tokens[1] == answer(1, 5)
        assert gateway.finished[1].cause == pb.FINISH_CAUSE_MAX_TOKENS
        assert not gateway.finished[1].HasField("failure")

    async def test_one_ends_at_a_stop_token(self, chain: Chain) -> None:
        gateway = await chain.gateway()
        await gateway.submit(1, stop=[answer(1, 1)[0]])
        await gateway.until_finished(1)
        assert gateway.tokens[1] == answer(1, 1)
        assert gateway.finished[1].cause == pb.FINISH_CAUSE_STOP_TOKEN

    async def test_many_share_the_rows(self, chain: Chain) -> None:
        gateway = await chain.gateway()
        for key in range(1, 9):
            await gateway.submit(key, (key, 2, 3), max_tokens=key)
        await gateway.until_finished(*range(1, 9))
        for key in range(1, 9):
            assert gateway.tokens[key] == answer(key, key, (key, 2, 3))

    @pytest.mark.parametrize(
        ("fields", "code", "reason", "named"),
        [
            ({"prompt": ()}, "INVALID_ARGUMENT", "EMPTY_PROMPT", "prompt"),
            ({"prompt": [1] * 24}, "INVALID_ARGUMENT", "PROMPT_TOO_LONG", "prompt"),
            ({"max_tokens": 22}, "INVALID_ARGUMENT", "CONTEXT_TOO_LONG", "stop.max_tokens"),
            ({"max_tokens": 0}, "INVALID_ARGUMENT", "INVALID_FIELD", "stop.max_tokens"),
            ({"prompt": [16]}, "INVALID_ARGUMENT", "TOKEN_OUT_OF_VOCAB", "prompt"),
            (
                {"sampling": {"temperature": float("nan")}},
                "INVALID_ARGUMENT",
                "INVALID_FIELD",
                "sampling.temperature",
            ),
            ({"sampling": {"top_p": 0.0}}, "INVALID_ARGUMENT", "INVALID_FIELD", "sampling.top_p"),
        ],
    )
    async def test_what_can_never_be_served_is_rejected_and_its_neighbour_is_not(
        self, chain: Chain, fields: dict[str, object], code: str, reason: str, named: str
    ) -> None:
        gateway = await chain.gateway()
        await gateway.submit(1, max_tokens=5)
        await gateway.submit(2, **fields)  # type: ignore[arg-type]
        await gateway.until(lambda _: 1 in gateway.finished and 2 in gateway.rejected)
        rejected = gateway.rejected[2]
        assert (rejected.code, rejected.reason) == (code, reason)
        assert dict(rejected.metadata) == {"field": named}
        assert named.rsplit(".", maxsplit=1)[-1] in rejected.message
        assert gateway.tokens[1] == answer(1, 5)
        assert gateway.accepted == [1]

    @pytest.mark.parametrize("key", [3, 2, 0, -1])
    async def test_a_key_not_above_the_last_is_rejected(self, chain: Chain, key: int) -> None:
        gateway = await chain.gateway()
        await gateway.submit(3, max_tokens=2)
        await gateway.submit(key, max_tokens=2)
        await gateway.until(lambda _: 3 in gateway.finished and key in gateway.rejected)
        assert gateway.rejected[key].reason == "PROTOCOL_VIOLATION"
        assert dict(gateway.rejected[key].metadata) == {"field": "key"}
        assert gateway.tokens[3] == answer(3, 2)

    async def test_while_draining_new_ones_are_rejected_and_old_ones_end(
        self, chain: Chain
    ) -> None:
        gateway = await chain.gateway()
        chain.runner.gate.clear()
        await gateway.submit(1, max_tokens=5)
        await gateway.until(lambda _: gateway.accepted)
        chain.service.drain()
        await gateway.submit(2)
        await gateway.until(lambda _: gateway.rejected)
        assert (gateway.rejected[2].code, gateway.rejected[2].reason) == ("UNAVAILABLE", "DRAINING")
        assert not gateway.opened[-1].serving, "the gateway is to send its clients elsewhere"
        chain.runner.gate.set()
        await gateway.until_finished(1)
        assert gateway.tokens[1] == answer(1, 5)


class TestLeaving:
    @pytest.mark.parametrize("command", ["stop", "cancel"])
    async def test_a_request_that_left_is_heard_of_no_more(
        self, chain: Chain, command: str
    ) -> None:
        gateway = await chain.gateway()
        chain.runner.gate.clear()
        await gateway.submit(1)
        await chain.runner.num_plans(3)  # the one that reset rows, and two steps
        leave = pb.Stop(key=1, kept_tokens=0) if command == "stop" else pb.Cancel(key=1)
        await gateway.send(**{command: leave})
        await gateway.submit(2, max_tokens=5)
        await gateway.until(lambda _: 2 in gateway.accepted)
        chain.runner.gate.set()
        await gateway.until_finished(2)
        assert gateway.tokens[2] == answer(2, 5)
        assert gateway.tokens[1] == []
        assert 1 not in gateway.finished
        stats = await chain.until(lambda stats: not stats.private_pages)
        assert (stats.finished_total, stats.cancelled_total) == (
            (2, 0) if command == "stop" else (1, 1)
        )

    async def test_a_key_that_ended_is_ignored(self, chain: Chain) -> None:
        gateway = await chain.gateway()
        await gateway.send(cancel=pb.Cancel(key=9))
        await gateway.submit(1, max_tokens=1)
        await gateway.until_finished(1)
        await gateway.send(stop=pb.Stop(key=1, kept_tokens=1))
        await gateway.submit(2, max_tokens=1)
        await gateway.until_finished(2)
        assert (await chain.stats()).cancelled_total == 0

    async def test_a_lost_session_takes_its_requests_along_and_no_others(
        self, chain: Chain
    ) -> None:
        leaver, stayer = await chain.gateway(), await chain.gateway()
        chain.runner.gate.clear()
        await leaver.submit(1)
        await leaver.submit(2)
        await leaver.until(lambda _: leaver.accepted == [1, 2])
        await stayer.submit(1, max_tokens=5)
        await stayer.until(lambda _: stayer.accepted)
        leaver.call.cancel()
        await chain.until(lambda stats: stats.cancelled_total == 2)
        chain.runner.gate.set()
        await stayer.until_finished(1)
        assert stayer.tokens[1] == answer(1, 5)
        await chain.until(lambda stats: stats.free_pages + stats.evictable_pages == 16)

    async def test_a_session_that_the_gateway_ends_is_over(self, chain: Chain) -> None:
        gateway = await chain.gateway()
        chain.runner.gate.clear()
        await gateway.submit(1)
        await gateway.until(lambda _: gateway.accepted)
        await gateway.call.done_writing()
        while await gateway.call.read() is not grpc.aio.EOF:
            pass
        assert await gateway.call.code() is grpc.StatusCode.OK
        stats = await chain.until(lambda stats: stats.cancelled_total)
        assert (stats.running_requests, stats.waiting_requests) == (0, 0)


async def test_two_sessions_use_the_same_keys(chain: Chain) -> None:
    first, second = await chain.gateway(), await chain.gateway()
    await first.submit(1, (1, 2), max_tokens=4)
    await second.submit(1, (3, 4), max_tokens=6)
    await first.until_finished(1)
    await second.until_finished(1)
    assert first.tokens[1] == answer(1, 4, (1, 2))
    assert second.tokens[1] == answer(1, 6, (3, 4))


async def test_a_gateway_that_does_not_read_gets_fewer_and_larger_messages(chain: Chain) -> None:
    gateway, other = await chain.gateway(), await chain.gateway()
    session = chain.service._sessions[1]
    taking = session.take
    held = asyncio.Event()

    async def take_later() -> pb.SessionResponse | None:
        await held.wait()
        return await taking()

    session.take = take_later  # type: ignore[method-assign] # as a write that is pending
    await gateway.submit(1, max_tokens=9)
    await gateway.until(lambda _: gateway.accepted)
    await other.submit(1, max_tokens=9)
    await other.until_finished(1)
    await chain.until(lambda stats: stats.finished_total == 2)
    held.set()
    await gateway.until_finished(1)
    assert gateway.tokens[1] == answer(1, 9)
    assert len([one for one in gateway.messages if one.step_output.keys]) <= 2


async def test_a_gateway_that_reads_nothing_is_dead_and_no_other_notices() -> None:
    """Its requests abort and its session ends, though the write to it never does."""
    async with chain_of(max_stall_s=0.5) as chain:
        dead, other = await chain.gateway(), await chain.gateway()
        chain.runner.gate.clear()
        await dead.submit(1)
        await dead.submit(2)
        await dead.until(lambda _: dead.accepted == [1, 2])
        with log_lines() as lines:
            chain.service._sessions[1].put_tokens([9] * 10**6, [5] * 10**6, 0)
            await chain.until(lambda stats: stats.cancelled_total == 2)
            chain.runner.gate.set()
            await other.submit(1, max_tokens=9)
            await other.until_finished(1)
        assert other.tokens[1] == answer(1, 9)
        closed = [line for line in lines if line["event"] == "session closed"]
        assert [(line["session_id"], line["aborted"]) for line in closed] == [(1, 2)]
        assert list(chain.service._sessions) == [2]
        await chain.until(lambda stats: stats.free_pages + stats.evictable_pages == 16)
        error = await failure_of(dead.call)
        assert error.reason is Reason.READER_STALLED


async def test_a_gateway_that_reads_slowly_is_not_dead() -> None:
    """Messages that it takes one by one, each within its time, may take longer together."""
    async with chain_of(max_stall_s=0.5) as chain:
        slow = await chain.gateway()
        session = chain.service._sessions[1]
        for _ in range(8):
            session.put_tokens([9] * 10**5, [5] * 10**5, 0)
            await asyncio.sleep(0.1)
            while not slow.tokens[9]:
                await slow.hear()
            slow.tokens.clear()
        await slow.submit(1, max_tokens=3)
        await slow.until_finished(1)
        assert slow.tokens[1] == answer(1, 3)
