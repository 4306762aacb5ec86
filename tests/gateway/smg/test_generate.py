"""Generate and Abort: what of a router's request reaches the manager, and what it gets back."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from pagewire.v1 import cache_pb2
from smg_grpc_proto import vllm_engine_pb2 as pb

from servicekit.errors import InvalidArgument, Reason, ResourceExhausted
from servicekit.status import error_of
from tests.cachesvc.rpc import failure_of
from tests.gateway.fake_cache import finished, tokens
from tests.gateway.front import accepted
from tests.gateway.smg.worker import Worker

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
MAX_TOKENS = cache_pb2.FINISH_CAUSE_MAX_TOKENS
STOP_TOKEN = cache_pb2.FINISH_CAUSE_STOP_TOKEN


def asked(*, stream: bool = True, **params: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id="chatcmpl-1",
        tokenized=pb.TokenizedInput(original_text="Hi", input_ids=[5, 6]),
        sampling_params=pb.SamplingParams(**params),
        stream=stream,
    )


async def answer(
    worker: Worker, request: pb.GenerateRequest, *responses: cache_pb2.SessionResponse
) -> list[pb.GenerateResponse]:
    """What a request gets from a manager that accepts it as its first one and says `responses`."""
    call = worker.stub.Generate(request)
    assert (await worker.cache.next("submit")).key == 1
    for response in (accepted(1), *responses):
        worker.cache.responses.put_nowait(response)
    return [response async for response in call]


def admitted(cached_tokens: int) -> cache_pb2.SessionResponse:
    one = cache_pb2.Admitted(key=1, cached_tokens=cached_tokens)
    return cache_pb2.SessionResponse(admitted=[one])


def likely(token_id: int, logprob: float, top: dict[int, float]) -> cache_pb2.SessionResponse:
    """A sampled token with its log probability."""
    one = cache_pb2.TokenLogprobs(key=1, chosen=logprob, top_ids=list(top), top=list(top.values()))
    output = cache_pb2.StepOutput(keys=[1], token_ids=[token_id], logprobs=[one])
    return cache_pb2.SessionResponse(step_output=output)


async def test_what_the_router_asks_for_reaches_the_manager(worker: Worker) -> None:
    request = asked(
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        min_p=0.125,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.5,
        max_tokens=20,
        min_tokens=2,
        stop_token_ids=[9],
        ignore_eos=True,
        n=1,
        logprobs=3,
        seed=-4,
        logit_bias={8: -1.5},
        skip_special_tokens=True,
        spaces_between_special_tokens=True,
    )
    call = worker.stub.Generate(request, metadata=[("traceparent", TRACEPARENT)])
    submit = await worker.cache.next("submit")
    call.cancel()
    assert (submit.request_id, submit.traceparent) == ("chatcmpl-1", TRACEPARENT)
    assert list(submit.prompt_ids) == [5, 6]
    assert (submit.max_tokens, submit.min_tokens) == (20, 2)
    assert list(submit.stop_token_ids) == [9]
    sampling = submit.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.25, 7)
    assert (sampling.min_p, sampling.seed, sampling.logprobs) == (0.125, -4, 3)
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.5, -0.5)
    assert sampling.repetition_penalty == 1.5
    assert [(one.token_id, one.bias) for one in sampling.logit_bias] == [(8, -1.5)]
    assert (await worker.cache.next("cancel")).key == submit.key


async def test_what_is_not_given_is_off_and_a_text_is_tokenized(worker: Worker) -> None:
    """0 of top_p and of repetition_penalty is how the protocol says that neither is given."""
    call = worker.stub.Generate(pb.GenerateRequest(text="Hi"))
    submit = await worker.cache.next("submit")
    call.cancel()
    assert list(submit.prompt_ids) == worker.front.tokenizer.encode("Hi")
    assert not submit.HasField("max_tokens")
    sampling = submit.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    assert sampling.repetition_penalty == 1.0
    assert not sampling.HasField("logprobs")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"mm_inputs": pb.MultimodalInputs()}, "mm_inputs"),
        ({"kv_transfer_params_json": "{}"}, "kv_transfer_params_json"),
        ({"data_parallel_rank": 0}, "data_parallel_rank"),
        ({"media_refs": pb.MediaRefs()}, "media_refs"),
    ],
)
async def test_a_field_that_is_not_served_is_refused_by_its_name(
    worker: Worker, fields: dict[str, Any], named: str
) -> None:
    request = pb.GenerateRequest(text="Hi", **fields)
    failure = await failure_of(worker.stub.Generate(request))
    assert isinstance(failure, InvalidArgument)
    assert failure.metadata == {"field": named}
    assert failure.message == f"{named} is not served: leave it out"


@pytest.mark.parametrize(
    "params",
    [
        {"prompt_logprobs": 0},
        {"truncate_prompt_tokens": 5},
        {"json_schema": "{}"},
        {"regex": ""},
        {"json_object": False},
        {"choice": pb.ChoiceConstraint(choices=["a"])},
        {"grammar_from_first_token": True},
        {"n": 2},
        {"top_k": 2**31},
        {"max_tokens": 2**32 - 1},
    ],
)
async def test_so_is_a_way_to_sample(worker: Worker, params: dict[str, Any]) -> None:
    failure = await failure_of(worker.stub.Generate(asked(**params)))
    assert isinstance(failure, InvalidArgument)
    assert failure.metadata == {"field": f"sampling_params.{next(iter(params))}"}
    assert worker.front.totals.requests == {("VllmEngine/Generate", "INVALID_ARGUMENT"): 1}


async def test_a_stream_gives_new_ids_in_chunks_and_ends_with_all(worker: Worker) -> None:
    responses = await answer(
        worker, asked(), admitted(1), tokens(1, 40), tokens(1, 41), finished(1, MAX_TOKENS)
    )
    *chunks, last = responses
    assert [token_id for one in chunks for token_id in one.chunk.token_ids] == [40, 41]
    assert sum(one.chunk.completion_tokens for one in chunks) == 2
    assert {one.chunk.prompt_tokens for one in chunks} == {2}
    assert last.complete == pb.GenerateComplete(
        output_ids=[40, 41],
        finish_reason="length",
        prompt_tokens=2,
        completion_tokens=2,
        cached_tokens=1,
    )


async def test_an_answer_that_is_not_streamed_is_one_message(worker: Worker) -> None:
    (only,) = await answer(
        worker, asked(stream=False), tokens(1, 40), tokens(1, 41), finished(1, MAX_TOKENS)
    )
    assert list(only.complete.output_ids) == [40, 41]
    assert not only.complete.HasField("output_logprobs")
    assert worker.front.totals.requests == {("VllmEngine/Generate", "OK"): 1}


@pytest.mark.parametrize("stream", [True, False])
async def test_log_probabilities_come_once_with_their_tokens(worker: Worker, stream: bool) -> None:
    responses = await answer(
        worker,
        asked(stream=stream, logprobs=1),
        likely(40, -0.5, {40: -0.5}),
        likely(41, -2.0, {42: -0.25}),
        finished(1, MAX_TOKENS),
    )
    found = pb.OutputLogProbs()
    for one in responses:
        found.MergeFrom((one.chunk if one.HasField("chunk") else one.complete).output_logprobs)
    assert found == pb.OutputLogProbs(
        token_ids=[40, 41],
        token_logprobs=[-0.5, -2.0],
        top_logprobs=[
            pb.TopLogProbs(token_ids=[40], values=[-0.5]),
            pb.TopLogProbs(token_ids=[42], values=[-0.25]),
        ],
    )


async def test_a_stop_token_is_named_and_delivered(worker: Worker) -> None:
    request = asked(stream=False, stop_token_ids=[41])
    (only,) = await answer(worker, request, tokens(1, 40, 41), finished(1, STOP_TOKEN))
    assert (only.complete.finish_reason, only.complete.matched_token_id) == ("stop", 41)
    assert list(only.complete.output_ids) == [40, 41]


async def test_an_end_token_is_a_stop_that_names_none(worker: Worker) -> None:
    (end,) = worker.front.tokenizer.end_token_ids
    request = asked(stream=False)
    (only,) = await answer(worker, request, tokens(1, 40, end), finished(1, STOP_TOKEN))
    assert only.complete.finish_reason == "stop"
    assert only.complete.WhichOneof("matched_stop") is None
    assert list(only.complete.output_ids) == [40, end]


@pytest.mark.parametrize("stream", [True, False])
async def test_every_token_of_a_stop_string_is_delivered_whole(
    worker: Worker, stream: bool
) -> None:
    """The router cuts the text itself: without the token "ick" its answer would lack the "i"."""
    ids = [40, worker.front.tokenizer.backend.token_to_id("ick")]
    call = worker.stub.Generate(asked(stream=stream, stop=["c"]))
    submit = await worker.cache.next("submit")
    for response in (accepted(submit.key), tokens(submit.key, *ids, 5, 6)):
        worker.cache.responses.put_nowait(response)
    *chunks, last = [response async for response in call]
    assert (last.complete.finish_reason, last.complete.matched_stop_str) == ("stop", "c")
    assert list(last.complete.output_ids) == ids
    assert last.complete.completion_tokens == len(ids)
    assert [token_id for one in chunks for token_id in one.chunk.token_ids] == ids * stream
    assert (await worker.cache.next("stop")).kept_tokens == len(ids)


async def test_abort_ends_the_stream_and_the_request(worker: Worker) -> None:
    """The router sends Abort when its client is gone, and leaves the call open."""
    call = worker.stub.Generate(asked())
    submit = await worker.cache.next("submit")
    for response in (accepted(submit.key), tokens(submit.key, 40)):
        worker.cache.responses.put_nowait(response)
    assert list((await call.read()).chunk.token_ids) == [40]
    await worker.stub.Abort(pb.AbortRequest(request_ids=["nobody", "chatcmpl-1"]))
    assert (await worker.cache.next("cancel")).key == submit.key
    last = (await call.read()).complete
    assert (last.finish_reason, list(last.output_ids)) == ("abort", [40])
    assert (last.prompt_tokens, last.completion_tokens) == (2, 1)
    assert await call.read() is grpc.aio.EOF
    assert worker.front.totals.requests == {("VllmEngine/Generate", "CANCELLED"): 1}


@pytest.mark.parametrize("count", [0, 1025])
async def test_abort_is_bounded(worker: Worker, count: int) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.stub.Abort(pb.AbortRequest(request_ids=["a"] * count))
    assert error_of(caught.value).metadata == {"field": "request_ids"}


async def test_a_full_queue_is_what_the_router_hears(worker: Worker) -> None:
    call = worker.stub.Generate(asked())
    submit = await worker.cache.next("submit")
    rejected = cache_pb2.Rejected(
        key=submit.key, code="RESOURCE_EXHAUSTED", reason="QUEUE_FULL", message="64 requests wait"
    )
    worker.cache.responses.put_nowait(cache_pb2.SessionResponse(rejected=[rejected]))
    failure = await failure_of(call)
    assert isinstance(failure, ResourceExhausted)
    assert failure.reason is Reason.QUEUE_FULL
