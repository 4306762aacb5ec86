"""RunnerService over a real server: handshake, answers in order, a dropped stream, drain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from pagewire.v1 import runner_pb2 as pb
from pagewire.v1 import runner_pb2_grpc

from runnersvc.service import RunnerService
from servicekit.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    Reason,
    Unavailable,
)
from servicekit.plan import Refusal
from tests.cachesvc.rpc import channel_to, failure_of, served
from tests.runnersvc.plans import ANSWER, decode, prefill
from tests.runnersvc.service_bench import Bench, results, send, serving_bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with serving_bench() as made:
        yield made


class TestAttach:
    async def test_it_is_answered_with_what_the_runner_is(self, bench: Bench) -> None:
        call = await bench.attached()
        description = call.answer.description
        assert (description.model_fingerprint, description.page_size) == ("tiny", 4)
        assert (description.num_pages, description.num_rows) == (8, 3)
        assert (description.max_seq_len, description.vocab_size) == (24, 16)
        assert call.answer.boot_id == bench.runner.boot_id
        assert (call.answer.last_executed, call.answer.last_manager_id) == (0, "")

    async def test_another_protocol_version_is_refused(self, bench: Bench) -> None:
        error = await failure_of(await bench.execute(protocol_version=7))
        assert isinstance(error, FailedPrecondition)
        assert error.reason is Reason.PROTOCOL_VERSION
        assert error.metadata == {"field": "attach.protocol_version"}
        assert "attach.protocol_version is 7" in error.message

    async def test_another_fingerprint_is_refused(self, bench: Bench) -> None:
        error = await failure_of(await bench.execute(model_fingerprint="another"))
        assert isinstance(error, FailedPrecondition)
        assert error.reason is Reason.FINGERPRINT_MISMATCH
        assert error.metadata == {"field": "attach.model_fingerprint"}
        assert "another" in error.message
        assert "tiny" in error.message

    async def test_a_second_stream_is_refused_while_one_is_live(self, bench: Bench) -> None:
        live = await bench.attached()
        error = await failure_of(await bench.execute(manager_id="manager-2"))
        assert isinstance(error, AlreadyExists)
        assert error.reason is Reason.STREAM_ALREADY_LIVE
        await send(live, prefill())
        assert await results(live, 1) == [(1, [ANSWER[0]])], "the live stream goes on"

    async def test_another_first_message_is_refused(self, bench: Bench) -> None:
        call = bench.stub.Execute()
        await send(call, prefill())
        error = await failure_of(call)
        assert isinstance(error, InvalidArgument)
        assert (error.reason, error.metadata) == (Reason.PROTOCOL_VIOLATION, {"field": "attach"})

    async def test_an_empty_stream_is_refused(self, bench: Bench) -> None:
        call = bench.stub.Execute()
        await call.done_writing()
        assert (await failure_of(call)).reason is Reason.PROTOCOL_VIOLATION

    async def test_an_attach_in_the_middle_ends_the_stream_and_the_next_is_taken(
        self, bench: Bench
    ) -> None:
        call = await bench.attached()
        await send(call, prefill())
        await results(call, 1)
        await call.write(pb.ExecuteRequest(attach=pb.Attach(protocol_version=1)))
        error = await failure_of(call)
        assert isinstance(error, InvalidArgument)
        assert (error.reason, error.metadata) == (Reason.PROTOCOL_VIOLATION, {"field": "plan"})
        assert (await bench.attached()).answer.last_executed == 1

    async def test_before_the_model_is_loaded_it_is_unavailable(self) -> None:
        service = RunnerService()
        add = runner_pb2_grpc.add_RunnerServiceServicer_to_server
        async with served(add, service) as address, channel_to(address) as channel:
            call = runner_pb2_grpc.RunnerServiceStub(channel).Execute()
            await call.write(pb.ExecuteRequest(attach=pb.Attach(protocol_version=1)))
            error = await failure_of(call)
        assert isinstance(error, Unavailable)
        assert error.reason is Reason.CHAIN_NOT_ATTACHED


class TestAnswers:
    async def test_results_come_in_plan_order(self, bench: Bench) -> None:
        call = await bench.attached()
        await send(call, prefill(), decode(2, 3), decode(3, 4))
        assert await results(call, 3) == [(nth + 1, [ANSWER[nth]]) for nth in range(3)]

    async def test_a_refusal_follows_earlier_results_and_ends_in_silence(
        self, bench: Bench
    ) -> None:
        call = await bench.attached()
        await send(call, prefill(), decode(2, 9), decode(3, 4), prefill(2))
        assert await results(call, 1) == [(1, [ANSWER[0]])]
        refusal = (await call.read()).refusal
        assert (refusal.plan_id, refusal.last_accepted_plan_id) == (2, 1)
        assert refusal.reason == pb.REFUSAL_REASON_CACHED_LEN
        assert list(refusal.named_rows) == [0]
        assert "cached_len 9" in refusal.message
        assert await results(call, 1) == [(2, [ANSWER[0]])], "plan 3 was dropped in silence"

    async def test_a_stream_that_the_manager_ends_is_answered_to_its_end(
        self, bench: Bench
    ) -> None:
        call = await bench.attached()
        await send(call, prefill(), decode(2, 3))
        await call.done_writing()
        assert [plan_id for plan_id, _ in await results(call, 2)] == [1, 2]
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


class TestADroppedStream:
    async def test_two_plans_in_flight_are_executed_and_their_results_sent_again(
        self, bench: Bench
    ) -> None:
        call = await bench.attached()
        await send(call, prefill())
        await results(call, 1)
        bench.memory.gate.clear()
        await send(call, decode(2, 3), decode(3, 4))
        assert await bench.runner.accepted(3) == 3
        call.cancel()
        bench.memory.gate.set()
        again = await bench.attached(boot_id=bench.runner.boot_id, last_result_plan_id=1)
        assert (again.answer.last_executed, again.answer.last_manager_id) == (3, "manager-1")
        assert await results(again, 2) == [(2, [ANSWER[1]]), (3, [ANSWER[2]])]
        await send(again, decode(4, 5, acked_plan_id=3))
        assert await results(again, 1) == [(4, [ANSWER[3]])]

    async def test_its_place_is_free_while_an_answer_could_not_be_written(
        self, bench: Bench
    ) -> None:
        """A reader that stopped reading holds the server in the middle of a write."""
        call = await bench.attached()
        await send(call, prefill())
        await results(call, 1)
        assert bench.runner._send is not None
        for _ in range(50):  # far more than a window of answers
            bench.runner._send(Refusal(2, "STORE", "x" * 1_000_000, (), 1))
        await call.read()
        call.cancel()
        again = await asyncio.wait_for(bench.attached(boot_id=bench.runner.boot_id), 10)
        assert again.answer.last_executed == 1


class TestAPlanThatFails:
    async def test_it_is_the_last_answer_after_the_results_before_it(self, bench: Bench) -> None:
        call = await bench.attached()
        await send(call, prefill())
        bench.memory.break_at(2)
        await send(call, decode(2, 3), decode(3, 4))
        assert await results(call, 1) == [(1, [ANSWER[0]])]
        failed = (await call.read()).failed
        assert (failed.plan_id, failed.last_plan_id) == (2, 2)
        assert failed.message == "RuntimeError: the device broke at plan 2"
        assert await call.read() is grpc.aio.EOF

    async def test_no_stream_is_taken_any_more(self, bench: Bench) -> None:
        call = await bench.attached()
        bench.memory.break_at(1)
        await send(call, prefill())
        await bench.runner.failed.wait()
        error = await failure_of(await bench.execute())
        assert isinstance(error, Unavailable)
        assert "a plan that failed" in error.message


class TestDrain:
    async def test_what_was_accepted_is_answered_then_the_stream_ends(self, bench: Bench) -> None:
        call = await bench.attached()
        bench.memory.gate.clear()
        await send(call, prefill())
        assert await bench.runner.accepted(1) == 1
        answer = asyncio.create_task(results(call, 1))  # gRPC drops unread messages at an error
        await bench.service.drain()
        bench.memory.gate.set()
        assert await answer == [(1, [ANSWER[0]])]
        error = await failure_of(call)
        assert isinstance(error, Unavailable)
        assert error.reason is Reason.DRAINING

    async def test_no_new_stream_is_taken(self, bench: Bench) -> None:
        await bench.service.drain()
        error = await failure_of(await bench.execute())
        assert isinstance(error, Unavailable)
        assert error.reason is Reason.DRAINING

    async def test_a_manager_that_ends_its_stream_within_the_grace_is_not_cut_off(
        self, bench: Bench
    ) -> None:
        call = await bench.attached()
        draining = asyncio.create_task(bench.service.ended())
        await send(call, prefill())
        assert [plan_id for plan_id, _ in await results(call, 1)] == [1]
        call.cancel()
        await asyncio.wait_for(draining, 10)
