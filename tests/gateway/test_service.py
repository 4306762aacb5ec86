"""The public service over a manager that the test plays: what of a call reaches it, and back."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from pagewire.v1 import cache_pb2, sampling_pb2
from pagewire.v1 import inference_pb2 as pb
from pagewire.v1.sampling_pb2 import SamplingParams

from gateway.intake import Intake
from servicekit.errors import DeadlineExceeded, Reason, ResourceExhausted
from servicekit.status import error_of
from tests.cachesvc.rpc import failure_of
from tests.gateway.fake_cache import finished, likely, tokens
from tests.gateway.front import Front, accepted, served_front
from tests.gateway.tiny_tokenizers import BACKENDS, save_model_dir

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
QUESTION = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5, 6]))
CHAT = pb.ChatRequest(messages=[pb.ChatMessage(role="user", content="Hi")])
INVALID = pb.CompleteRequest(text="Hi", sampling=sampling_pb2.SamplingParams(temperature=-1))


async def test_deadline_and_trace_context_of_the_caller_reach_the_manager(front: Front) -> None:
    call = front.stub.Generate(QUESTION, timeout=100, metadata=[("traceparent", TRACEPARENT)])
    submit = await front.cache.next("submit")
    assert submit.traceparent == TRACEPARENT
    assert 90 < submit.remaining.ToTimedelta().total_seconds() < 102  # gRPC rounds up
    call.cancel()
    assert (await front.cache.next("cancel")).key == submit.key


@pytest.mark.parametrize("metadata", [[], [("traceparent", "00-none")]])
async def test_a_caller_without_either_has_neither(
    front: Front, metadata: list[tuple[str, str]]
) -> None:
    call = front.stub.Generate(QUESTION, metadata=metadata)
    submit = await front.cache.next("submit")
    assert not submit.HasField("remaining")
    assert submit.traceparent == ""
    call.cancel()


@pytest.mark.parametrize("rpc", ["Generate", "Chat", "Complete"])
async def test_priority_and_cache_salt_reach_the_manager(rpc: str, front: Front) -> None:
    request = {
        "Generate": pb.GenerateRequest(text="Hi"),
        "Chat": pb.ChatRequest(messages=[pb.ChatMessage(role="user", content="Hi")]),
        "Complete": pb.CompleteRequest(text="Hi"),
    }[rpc]
    plain = getattr(front.stub, rpc)(request)
    submit = await front.cache.next("submit")
    assert (submit.priority, submit.cache_salt) == (0, "")
    request.priority, request.cache_salt = -7, "tenant"
    other = getattr(front.stub, rpc)(request)
    submit = await front.cache.next("submit")
    assert (submit.priority, submit.cache_salt) == (-7, "tenant")
    plain.cancel()
    other.cancel()


async def test_a_delta_tells_when_the_manager_sent_its_tokens(front: Front) -> None:
    first, second = front.tokenizer.encode("好")[:2]  # a character is left unfinished
    call = front.stub.Generate(pb.GenerateRequest(text="Hi"))
    key = (await front.cache.next("submit")).key
    whole = front.tokenizer.encode("x")
    for response in (
        accepted(key),
        tokens(key, *whole, sent_at_us=1_000_000),
        tokens(key, first, second, sent_at_us=2_000_000),
        finished(key, cache_pb2.FINISH_CAUSE_MAX_TOKENS),
    ):
        front.cache.responses.put_nowait(response)
    piece, rest = [each.delta async for each in call if each.HasField("delta")]
    assert (list(piece.token_ids), piece.sent_at_us) == (whole, 1_000_000)
    assert list(rest.token_ids) == [first, second]
    assert not rest.HasField("sent_at_us"), "the end let it go"


async def test_choices_come_in_one_stream_told_apart_by_their_number(front: Front) -> None:
    call = front.stub.Generate(pb.GenerateRequest(text="Hi", n=2))
    await say_choices(front, ["x", "yy"])
    said = [response async for response in call]
    assert [response.WhichOneof("event") for response in said].count("started") == 1
    assert said[0].HasField("started")
    for choice, text in enumerate(["x", "yy"]):
        deltas = [each.delta for each in said if each.HasField("delta")]
        assert "".join(delta.text for delta in deltas if delta.choice == choice) == text
        (end,) = (
            each.finished
            for each in said
            if each.finished.choice == choice and each.HasField("finished")
        )
        assert end.usage.completion_tokens == len(front.tokenizer.encode(text))
        assert end.usage.prompt_tokens == said[0].started.prompt_tokens


async def test_a_unary_answer_has_the_first_choice_and_the_further_ones(front: Front) -> None:
    call = front.stub.Complete(pb.CompleteRequest(text="Hi", n=3))
    await say_choices(front, ["x", "yy", "zzz"])
    answer = await call
    assert answer.text == "x"
    assert [choice.text for choice in answer.further_choices] == ["yy", "zzz"]
    for choice in (answer, *answer.further_choices):
        assert list(choice.token_ids) == front.tokenizer.encode(choice.text)
        assert choice.finished.usage.completion_tokens == len(choice.token_ids)
    assert [choice.finished.choice for choice in answer.further_choices] == [1, 2]


async def say_choices(front: Front, texts: list[str]) -> None:
    """Take a choice for each text and answer so, the last one first."""
    submits = [await front.cache.next("submit") for _ in texts]
    for submit, text in reversed(list(zip(submits, texts, strict=True))):
        front.cache.responses.put_nowait(accepted(submit.key))
        front.cache.responses.put_nowait(tokens(submit.key, *front.tokenizer.encode(text)))
        end = finished(submit.key, cache_pb2.FINISH_CAUSE_MAX_TOKENS)
        front.cache.responses.put_nowait(end)


async def test_case_8_7_an_answer_over_4_mib_passes_both_hops(front: Front) -> None:
    """Case 8.7: gRPC's default bound ended long answers with many log probabilities."""
    num_tokens = 26_000
    sampling = SamplingParams(logprobs=20)
    call = front.stub.Complete(pb.CompleteRequest(text="Hi", sampling=sampling))
    submit = await front.cache.next("submit")
    hop = likely(submit.key, *[40] * num_tokens, top=20)
    front.cache.responses.put_nowait(accepted(submit.key))
    front.cache.responses.put_nowait(hop)
    front.cache.responses.put_nowait(finished(submit.key, cache_pb2.FINISH_CAUSE_MAX_TOKENS))
    answer = await call
    assert min(hop.ByteSize(), answer.ByteSize()) > 4 * 2**20
    assert len(answer.logprobs) == num_tokens
    assert {len(one.top) for one in answer.logprobs} == {20}


@pytest.mark.parametrize("n", [0, -1, 129])
async def test_a_number_of_choices_that_cannot_be_is_refused_by_name(front: Front, n: int) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await front.stub.Complete(pb.CompleteRequest(text="Hi", n=n))
    error = error_of(caught.value)
    assert (error.reason, error.metadata) == (Reason.INVALID_FIELD, {"field": "n"})
    assert error.message == f"n is {n}; it must be from 1 to 128"
    assert front.cache.commands.empty()


async def test_a_cancel_by_name_ends_all_choices(front: Front) -> None:
    call = front.stub.Generate(pb.GenerateRequest(text="Hi", n=3, request_id="a"))
    keys = {(await front.cache.next("submit")).key for _ in range(3)}
    assert list((await front.stub.Cancel(pb.CancelRequest(request_ids=["a"]))).cancelled_ids) == [
        "a"
    ]
    assert {(await front.cache.next("cancel")).key for _ in range(3)} == keys
    assert (await failure_of(call)).reason is Reason.CANCELLED


async def test_a_rejected_choice_ends_them_all(front: Front) -> None:
    call = front.stub.Generate(pb.GenerateRequest(text="Hi", n=2))
    first, second = [await front.cache.next("submit") for _ in range(2)]
    front.cache.responses.put_nowait(accepted(first.key))
    rejected = cache_pb2.Rejected(
        key=second.key, code="RESOURCE_EXHAUSTED", reason="QUEUE_FULL", message="full"
    )
    front.cache.responses.put_nowait(cache_pb2.SessionResponse(rejected=[rejected]))
    assert (await failure_of(call)).reason is Reason.QUEUE_FULL
    assert (await front.cache.next("cancel")).key == first.key


@pytest.mark.parametrize("rpc", ["Generate", "Chat"])
async def test_resumed_ids_reach_the_manager_and_their_text_the_caller(
    rpc: str, front: Front
) -> None:
    ids = front.tokenizer.encode("well")
    request = {
        "Generate": pb.GenerateRequest(text="Hi", resume_token_ids=ids),
        "Chat": pb.ChatRequest(
            messages=[pb.ChatMessage(role="user", content="Hi")], resume_token_ids=ids
        ),
    }[rpc]
    call = getattr(front.stub, rpc)(request)
    submit = await front.cache.next("submit")
    assert list(submit.resume_token_ids) == ids
    front.cache.responses.put_nowait(accepted(submit.key))
    assert (await call.read()).started.resumed_text == "well"
    call.cancel()


@pytest.mark.parametrize("in_one_message", [True, False])
async def test_what_the_cache_had_of_the_prompt_is_in_the_usage(
    front: Front, in_one_message: bool
) -> None:
    call = front.stub.Generate(QUESTION)
    submit = await front.cache.next("submit")
    admitted = cache_pb2.Admitted(key=submit.key, cached_tokens=1)
    messages = [
        accepted(submit.key),
        cache_pb2.SessionResponse(admitted=[admitted]),
        tokens(submit.key, 7),
        finished(submit.key, cache_pb2.FINISH_CAUSE_MAX_TOKENS),
    ]
    if in_one_message:
        merged = cache_pb2.SessionResponse()
        for message in messages:
            merged.MergeFrom(message)
        messages = [merged]
    for message in messages:
        front.cache.responses.put_nowait(message)
    last = [response async for response in call][-1]
    assert last.finished.usage == pb.Usage(prompt_tokens=2, completion_tokens=1, cached_tokens=1)


async def test_a_full_queue_tells_the_caller_when_to_come_again(front: Front) -> None:
    call = front.stub.Generate(QUESTION)
    submit = await front.cache.next("submit")
    rejected = cache_pb2.Rejected(
        key=submit.key,
        code="RESOURCE_EXHAUSTED",
        reason="QUEUE_FULL",
        message="64 requests wait",
        retry_after=Duration(seconds=1, nanos=500_000_000),
    )
    front.cache.responses.put_nowait(cache_pb2.SessionResponse(rejected=[rejected]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    error = error_of(caught.value)
    assert isinstance(error, ResourceExhausted)
    assert (error.reason, error.retry_after_s) == (Reason.QUEUE_FULL, 1.5)


async def test_a_request_whose_time_is_over_while_it_waits_is_a_deadline(front: Front) -> None:
    call = front.stub.Generate(QUESTION, timeout=100)
    submit = await front.cache.next("submit")
    front.cache.responses.put_nowait(accepted(submit.key))
    failure = cache_pb2.Rejected(
        key=submit.key,
        code="DEADLINE_EXCEEDED",
        reason="DEADLINE_EXCEEDED",
        message="it waited 100 s",
    )
    ended = cache_pb2.RequestFinished(
        key=submit.key, cause=cache_pb2.FINISH_CAUSE_FAILED, failure=failure
    )
    front.cache.responses.put_nowait(cache_pb2.SessionResponse(finished=[ended]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    error = error_of(caught.value)
    assert isinstance(error, DeadlineExceeded)
    assert (error.reason, error.retry_after_s) == (Reason.DEADLINE_EXCEEDED, None)


async def test_an_answer_that_nobody_reads_is_cancelled_and_counted(tmp_path: Path) -> None:
    model_dir = save_model_dir(tmp_path / "model", BACKENDS["byte_level"]())
    async with served_front(model_dir, tmp_path / "c", max_stall_s=0.05) as front:
        call = front.stub.Generate(QUESTION)
        submit = await front.cache.next("submit")
        front.cache.responses.put_nowait(accepted(submit.key))
        for _ in range(8):
            front.cache.responses.put_nowait(tokens(submit.key, *[40] * 5_000))
        assert (await front.cache.next("cancel")).key == submit.key
        assert (await failure_of(call)).reason is Reason.READER_STALLED
        assert front.totals.requests == {("Generate", "CANCELLED"): 1}
        assert front.totals.live_answers == 0


@pytest.mark.parametrize("own_s", [None, 100])
async def test_an_answer_that_takes_too_long_is_a_deadline_and_leaves_the_manager(
    tmp_path: Path, own_s: float | None
) -> None:
    """Whichever is shorter: ours, here."""
    model_dir = save_model_dir(tmp_path / "tokenizer", BACKENDS["byte_level"]())
    async with served_front(model_dir, tmp_path / "c", Intake(max_request_s=0.2)) as front:
        call = front.stub.Generate(QUESTION, timeout=own_s)
        submit = await front.cache.next("submit")
        front.cache.responses.put_nowait(accepted(submit.key))
        front.cache.responses.put_nowait(tokens(submit.key, 7))
        failure = await failure_of(call)
        assert (await front.cache.next("cancel")).key == submit.key
    assert isinstance(failure, DeadlineExceeded)
    assert "max_request_s 0.2" in failure.message


async def test_live_requests_are_bounded_and_counted_down_however_they_end(tmp_path: Path) -> None:
    model_dir = save_model_dir(tmp_path / "tokenizer", BACKENDS["byte_level"]())
    intake = Intake(max_live_requests=1)
    async with served_front(model_dir, tmp_path / "c", intake) as front:
        first = front.stub.Generate(QUESTION)
        await front.cache.next("submit")
        refused = await failure_of(front.stub.Chat(CHAT))
        assert isinstance(refused, ResourceExhausted)
        assert refused.metadata == {"live_requests": "1", "max_live_requests": "1"}
        first.cancel()
        await front.cache.next("cancel")
        with pytest.raises(grpc.aio.AioRpcError, match="temperature"):
            await front.stub.Complete(INVALID)
        second = front.stub.Generate(QUESTION)
        submit = await front.cache.next("submit")
        front.cache.responses.put_nowait(accepted(submit.key))
        front.cache.responses.put_nowait(finished(submit.key, cache_pb2.FINISH_CAUSE_MAX_TOKENS))
        assert [reply async for reply in second][-1].HasField("finished")
        assert intake.live_requests == 0


async def test_each_choice_counts_as_a_live_request(tmp_path: Path) -> None:
    """Eight choices of one call passed a bound of one."""
    model_dir = save_model_dir(tmp_path / "tokenizer", BACKENDS["byte_level"]())
    intake = Intake(max_live_requests=3)
    async with served_front(model_dir, tmp_path / "c", intake) as front:
        refused = await failure_of(
            front.stub.Generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5]), n=4))
        )
        assert isinstance(refused, ResourceExhausted)
        assert "ask for fewer choices" in refused.message
        assert intake.live_requests == 0
        call = front.stub.Generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5]), n=3))
        for _ in range(3):
            await front.cache.next("submit")
        assert intake.live_requests == 3
        call.cancel()
        for _ in range(3):
            await front.cache.next("cancel")
    assert intake.live_requests == 0
