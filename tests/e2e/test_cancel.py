"""Case 8.1: whoever leaves gives rows and pages back within a few steps; nobody else notices."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from pagewire.v1 import inference_pb2_grpc
from pagewire.v1.inference_pb2 import CancelRequest, CompleteRequest

from servicekit.errors import Reason
from tests.cachesvc.rpc import failure_of
from tests.e2e.second_gateway import second_gateway
from tests.e2e.system import System, greedy, ids_of, running
from tests.e2e.tiny_model import clear_prompt


async def settled_after(system: System, cancelled_before: int, count: int) -> None:
    stats = await system.settled()
    assert stats.cancelled_total == cancelled_before + count
    assert stats.free_pages + stats.evictable_pages == stats.num_pages


async def test_case_8_1_a_client_that_cancels_in_mid_answer_ends_its_request_alone(
    tiny: System, tiny_dir: Path
) -> None:
    prompt_ids, expected = clear_prompt(tiny_dir, 6, 60)
    before = (await tiny.settled()).cancelled_total
    async with tiny.client() as stub:
        neighbour = stub.Generate(greedy(prompt_ids, 60))
        leaver = stub.Generate(greedy([1, 2, 3], 200))
        for _ in range(4):  # started and three deltas
            await leaver.read()
        leaver.cancel()
        assert await ids_of(neighbour) == expected
    await settled_after(tiny, before, 1)


async def test_case_8_1_a_client_that_drops_its_connection_ends_its_request(tiny: System) -> None:
    before = (await tiny.settled()).cancelled_total
    async with tiny.client() as stub:
        call = stub.Generate(greedy([1, 2, 3], 200))
        for _ in range(4):
            await call.read()
    await settled_after(tiny, before, 1)  # the channel is closed, the call was not


async def test_case_8_1_a_queued_request_can_be_cancelled(tiny: System) -> None:
    before = (await tiny.settled()).cancelled_total
    async with tiny.client() as stub:
        calls = [stub.Generate(greedy([1, 2, nth], 200)) for nth in range(8)]  # 4 rows
        await asyncio.gather(*(call.read() for call in calls))  # all accepted, half of them wait
        for call in calls:
            call.cancel()
    await settled_after(tiny, before, 8)


async def test_case_8_1_a_request_can_be_cancelled_while_it_prefills(
    tiny_dir: Path, tmp_path: Path
) -> None:
    """Case 8.1: in chunks of 4 tokens, the prompt is never computed to its end."""
    settings = {"num_threads": 1, "step_budget_tokens": 4}
    with running(System(tiny_dir, tmp_path, **settings)) as system:
        async with system.client() as stub:
            call = stub.Generate(greedy([1] * 200, 20))
            await call.read()
            call.cancel()
            call.cancel()  # twice is once
        stats = await system.settled()
    assert stats.cancelled_total == 1
    assert stats.sampled_tokens_total == 0
    assert stats.prompt_tokens_total < 200


async def test_case_8_1_a_unary_call_can_be_cancelled(tiny: System) -> None:
    before = (await tiny.settled()).cancelled_total
    async with tiny.client() as stub:
        request = greedy([1, 2, 3], 200)
        call = stub.Complete(
            CompleteRequest(
                token_ids=request.token_ids, sampling=request.sampling, stop=request.stop
            )
        )
        await tiny.running(1)
        call.cancel()
    await settled_after(tiny, before, 1)


async def test_case_8_1_a_stream_can_be_cancelled_by_its_id_from_another_connection(
    tiny: System, tiny_dir: Path
) -> None:
    prompt_ids, expected = clear_prompt(tiny_dir, 6, 60)
    before = (await tiny.settled()).cancelled_total
    async with tiny.client() as stub, tiny.client() as other:
        neighbour = stub.Generate(greedy(prompt_ids, 60))
        call = stub.Generate(greedy([1, 2, 3], 200, request_id="long"))
        for _ in range(4):  # started and three deltas
            await call.read()
        asked = CancelRequest(request_ids=["long", "nobody"])
        first, second = await other.Cancel(asked), await other.Cancel(asked)
        failure = await failure_of(call)
        assert await ids_of(neighbour) == expected
    assert (first.cancelled_ids, first.unknown_ids) == (["long"], ["nobody"])
    assert (second.cancelled_ids, second.unknown_ids) == ([], ["long", "nobody"])
    assert (failure.code_name, failure.reason) == ("CANCELLED", Reason.CANCELLED)
    await settled_after(tiny, before, 1)


async def test_case_8_1_requests_that_wait_can_be_cancelled_by_their_ids(tiny: System) -> None:
    before = (await tiny.settled()).cancelled_total
    async with tiny.client() as stub:
        calls = [
            stub.Generate(greedy([1, 2, nth], 200, request_id=f"waits {nth}")) for nth in range(8)
        ]  # 4 rows
        await asyncio.gather(*(call.read() for call in calls))
        names = [f"waits {nth}" for nth in range(8)]
        answer = await stub.Cancel(CancelRequest(request_ids=names))
        failures = await asyncio.gather(*(failure_of(call) for call in calls))
    assert answer.cancelled_ids == names
    assert {failure.reason for failure in failures} == {Reason.CANCELLED}
    await settled_after(tiny, before, 8)


async def test_case_8_1_two_hundred_can_leave_at_once(tiny: System, tiny_dir: Path) -> None:
    prompt_ids, expected = clear_prompt(tiny_dir, 6, 60)
    before = (await tiny.settled()).cancelled_total
    async with tiny.client() as stub:
        calls = [stub.Generate(greedy([1, 2, nth], 200)) for nth in range(200)]
        await asyncio.gather(*(call.read() for call in calls))
        for call in calls:
            call.cancel()
        assert await ids_of(stub.Generate(greedy(prompt_ids, 60))) == expected
    await settled_after(tiny, before, 200)


async def test_a_deadline_ends_the_request_and_gives_its_pages_back(tiny: System) -> None:
    before = (await tiny.settled()).cancelled_total
    async with tiny.client() as stub:
        calls = [stub.Generate(greedy([1, 2, nth], 200), timeout=0.15) for nth in range(12)]
        answers = await asyncio.gather(*(ids_of(call) for call in calls), return_exceptions=True)
    late = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert late, "twelve answers of 200 tokens were meant to take longer than 0.15 s"
    assert {error.code() for error in late} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    stats = await tiny.settled()
    assert stats.free_pages + stats.evictable_pages == stats.num_pages
    assert stats.cancelled_total > before


async def test_an_answer_that_takes_too_long_is_ended_and_gives_its_pages_back(
    tiny: System, tmp_path: Path
) -> None:
    with second_gateway(tiny, tmp_path, "--max-request-s", "0.05") as gateway:
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            with tiny.held():  # four run, eight wait
                calls = [stub.Generate(greedy([1, 2, nth], 200)) for nth in range(12)]
                failures = await asyncio.gather(*(failure_of(call) for call in calls))
        await tiny.settled()
    assert {failure.reason for failure in failures} == {Reason.DEADLINE_EXCEEDED}


@pytest.mark.parametrize("include_stop", [False, True])
@pytest.mark.parametrize("stop", ["strings", "token_ids"])
async def test_a_stop_is_a_finish_and_not_an_abort(
    stop: str, include_stop: bool, tiny: System, tiny_dir: Path
) -> None:
    prompt_ids, expected = clear_prompt(tiny_dir, 6, 60)
    before = await tiny.settled()
    request = greedy(prompt_ids, 60)
    if stop == "token_ids":
        request.stop.token_ids.append(expected[10])
    else:
        from gateway.tokenizer import Tokenizer

        text = Tokenizer.load(tiny_dir).decode(expected[10:13])
        request.stop.strings.append(text or "\ufffd")
    async with tiny.client() as stub:
        responses = [response async for response in stub.Generate(request)]
    finished = responses[-1].finished
    assert finished.reason == 1  # FINISH_REASON_STOP
    assert finished.WhichOneof("matched") == stop.removesuffix("s").replace(
        "string", "stop_string"
    ).replace("token_id", "stop_token_id")
    after = await tiny.settled()
    assert after.finished_total == before.finished_total + 1
    assert after.cancelled_total == before.cancelled_total
