"""Bad input gets its code, its reason and a text that names the field; a neighbour and the pages do
not notice.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from pagewire.v1 import inference_pb2 as pb
from pagewire.v1 import sampling_pb2

from tests.e2e.neighbour import undisturbed
from tests.e2e.system import System, greedy, ids_of
from tests.e2e.tiny_model import MAX_SEQ_LEN, VOCAB_SIZE, clear_prompt

POOL_TOKENS = 15 * 16  # of the `tiny` system
OK_PROMPT = [5, 6, 7]


class Refused(NamedTuple):
    code: grpc.StatusCode
    reason: str
    field: str
    text: str


def generate(
    prompt_ids: list[int] | None = None,
    *,
    text: str | None = None,
    sampling: dict | None = None,
    **fields: object,
) -> pb.GenerateRequest:
    stop = {
        name: fields.pop(name)
        for name in ("max_tokens", "min_tokens", "strings", "token_ids")
        if name in fields
    }
    request = pb.GenerateRequest(
        sampling=sampling_pb2.SamplingParams(**(sampling or {})),
        stop=pb.StopParams(**stop),
        **fields,
    )
    if text is not None:
        request.text = text
    if prompt_ids is not None:
        request.token_ids.ids.extend(prompt_ids)
        request.token_ids.SetInParent()
    return request


INVALID = grpc.StatusCode.INVALID_ARGUMENT
CASES = {
    "no prompt at all": (generate(), INVALID, "EMPTY_PROMPT", "prompt"),
    "an empty text": (generate(text=""), INVALID, "EMPTY_PROMPT", "prompt"),
    "no token ids": (generate([]), INVALID, "EMPTY_PROMPT", "prompt"),
    "a prompt over max_seq_len": (
        generate([1] * (MAX_SEQ_LEN + 1)),
        INVALID,
        "PROMPT_TOO_LONG",
        "prompt",
    ),
    "prompt + max_tokens over max_seq_len": (
        generate([1] * 200, max_tokens=MAX_SEQ_LEN - 199),
        INVALID,
        "CONTEXT_TOO_LONG",
        "stop.max_tokens",
    ),
    "a prompt that never fits the pool": (
        generate([1] * POOL_TOKENS),
        INVALID,
        "PROMPT_EXCEEDS_POOL",
        "prompt",
    ),
    "max_tokens 0": (
        generate(OK_PROMPT, max_tokens=0),
        INVALID,
        "INVALID_FIELD",
        "stop.max_tokens",
    ),
    "max_tokens negative": (
        generate(OK_PROMPT, max_tokens=-3),
        INVALID,
        "INVALID_FIELD",
        "stop.max_tokens",
    ),
    "temperature negative": (
        generate(OK_PROMPT, sampling={"temperature": -0.5}),
        INVALID,
        "INVALID_FIELD",
        "sampling.temperature",
    ),
    "temperature NaN": (
        generate(OK_PROMPT, sampling={"temperature": float("nan")}),
        INVALID,
        "INVALID_FIELD",
        "sampling.temperature",
    ),
    "top_p 0": (
        generate(OK_PROMPT, sampling={"top_p": 0}),
        INVALID,
        "INVALID_FIELD",
        "sampling.top_p",
    ),
    "top_p over 1": (
        generate(OK_PROMPT, sampling={"top_p": 1.5}),
        INVALID,
        "INVALID_FIELD",
        "sampling.top_p",
    ),
    "top_p NaN": (
        generate(OK_PROMPT, sampling={"top_p": float("nan")}),
        INVALID,
        "INVALID_FIELD",
        "sampling.top_p",
    ),
    "top_k -2": (
        generate(OK_PROMPT, sampling={"top_k": -2}),
        INVALID,
        "INVALID_FIELD",
        "sampling.top_k",
    ),
    "min_p over 1": (
        generate(OK_PROMPT, sampling={"min_p": 1.5}),
        INVALID,
        "INVALID_FIELD",
        "sampling.min_p",
    ),
    "repetition_penalty 0": (
        generate(OK_PROMPT, sampling={"repetition_penalty": 0}),
        INVALID,
        "INVALID_FIELD",
        "sampling.repetition_penalty",
    ),
    "frequency_penalty over 2": (
        generate(OK_PROMPT, sampling={"frequency_penalty": 2.5}),
        INVALID,
        "INVALID_FIELD",
        "sampling.frequency_penalty",
    ),
    "a bias over 100": (
        generate(OK_PROMPT, sampling={"logit_bias": [{"token_id": 3, "bias": 101}]}),
        INVALID,
        "INVALID_FIELD",
        "sampling.logit_bias",
    ),
    "a bias of an id outside the vocabulary": (
        generate(OK_PROMPT, sampling={"logit_bias": [{"token_id": VOCAB_SIZE, "bias": 1}]}),
        INVALID,
        "TOKEN_OUT_OF_VOCAB",
        "sampling.logit_bias",
    ),
    "min_tokens over max_tokens": (
        generate(OK_PROMPT, max_tokens=3, min_tokens=4),
        INVALID,
        "INVALID_FIELD",
        "stop.min_tokens",
    ),
    "min_tokens negative": (
        generate(OK_PROMPT, min_tokens=-1),
        INVALID,
        "INVALID_FIELD",
        "stop.min_tokens",
    ),
    "a stop string of 257 characters": (
        generate(OK_PROMPT, strings=["x" * 257]),
        INVALID,
        "INVALID_FIELD",
        "stop.strings",
    ),
    "an unknown model": (
        generate(OK_PROMPT, model="gpt-17"),
        grpc.StatusCode.NOT_FOUND,
        "MODEL_NOT_FOUND",
        "model",
    ),
    "a token id over the vocabulary": (
        generate([1, VOCAB_SIZE]),
        INVALID,
        "TOKEN_OUT_OF_VOCAB",
        "prompt",
    ),
    "a negative token id": (generate([1, -1]), INVALID, "TOKEN_OUT_OF_VOCAB", "prompt"),
    "a stop token id over the vocabulary": (
        generate(OK_PROMPT, token_ids=[VOCAB_SIZE]),
        INVALID,
        "TOKEN_OUT_OF_VOCAB",
        "stop.token_ids",
    ),
    "an empty stop string": (
        generate(OK_PROMPT, strings=["x", ""]),
        INVALID,
        "INVALID_FIELD",
        "stop.strings",
    ),
    "a request id of 257 characters": (
        generate(OK_PROMPT, request_id="x" * 257),
        INVALID,
        "INVALID_FIELD",
        "request_id",
    ),
    "a message over max_message_bytes": (
        generate(text="x" * 70_000),
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "MESSAGE_TOO_LARGE",
        "GenerateRequest",
    ),
}


async def refused(call: grpc.aio.Call) -> Refused:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ids_of(call)
    status = rpc_status.from_call(caught.value)
    found = error_details_pb2.ErrorInfo()
    assert status is not None, f"no ErrorInfo with {caught.value.code()}"
    assert len(status.details) == 1
    assert status.details[0].Unpack(found)
    assert found.domain == "pagewire"
    return Refused(caught.value.code(), found.reason, found.metadata["field"], status.message)


@pytest.mark.parametrize("name", CASES)
async def test_bad_input_is_refused_by_name_and_disturbs_nobody(
    name: str, tiny: System, tiny_dir: Path
) -> None:
    request, code, reason, field = CASES[name]
    async with undisturbed(tiny, tiny_dir), tiny.client() as stub:
        answer = await refused(stub.Generate(request))
    assert (answer.code, answer.reason, answer.field) == (code, reason, field)
    assert field.split(".")[-1] in answer.text


async def test_a_message_over_the_transports_own_bound_is_resource_exhausted(tiny: System) -> None:
    async with tiny.client() as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ids_of(stub.Generate(generate(text="x" * 400_000)))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(await ids_of(stub.Generate(greedy(OK_PROMPT, 3)))) == 3


@pytest.mark.parametrize("rpc", ["Chat", "Complete"])
async def test_every_rpc_refuses_alike(rpc: str, tiny: System) -> None:
    sampling = sampling_pb2.SamplingParams(temperature=-1)
    async with tiny.client() as stub:
        if rpc == "Chat":
            message = pb.ChatMessage(role="user", content="hi")
            call = ids_of(stub.Chat(pb.ChatRequest(messages=[message], sampling=sampling)))
        else:
            call = stub.Complete(pb.CompleteRequest(text="hi", sampling=sampling))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
    assert caught.value.code() is INVALID
    assert "sampling.temperature" in caught.value.details()


async def test_both_numbers_are_in_the_text_of_what_cannot_fit(tiny: System) -> None:
    async with tiny.client() as stub:
        pool = await refused(stub.Generate(generate([1] * POOL_TOKENS)))
        context = await refused(stub.Generate(generate([1] * 200, max_tokens=57)))
    assert "240" in pool.text
    assert all(number in context.text for number in ("200", "57", "256"))


async def test_case_8_3_a_second_live_request_with_one_id_is_refused_and_the_first_goes_on(
    tiny: System, tiny_dir: Path
) -> None:
    """Case 8.3: the twin must neither take over the first one's answer nor end it."""
    prompt_ids, expected = clear_prompt(tiny_dir, 6, 40)
    async with undisturbed(tiny, tiny_dir), tiny.client() as stub:
        older = stub.Generate(greedy(prompt_ids, 40, request_id="twin"))
        first = [await older.read() for _ in range(3)]
        answer = await refused(stub.Generate(greedy([9, 9], 5, request_id="twin")))
        rest = await ids_of(older)
    assert answer[:3] == (grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID", "request_id")
    assert "request_id 'twin' is live" in answer.text
    assert [i for response in first for i in response.delta.token_ids] + rest == expected


async def _until_refused(call: grpc.aio.Call):
    """The responses of a call; none when its request id is still live."""
    try:
        async for response in call:
            yield response
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.ALREADY_EXISTS:
            raise


async def test_case_8_3_an_id_is_free_again_as_soon_as_its_request_ended(tiny: System) -> None:
    """Case 8.3: cancel X and send X again at once, a hundred times; a late cancel must not hit the
    successor.
    """
    async with tiny.client() as stub:
        for _ in range(100):
            call = stub.Generate(greedy(OK_PROMPT, 100, request_id="again"))
            await call.read()
            call.cancel()
            answers = 0
            while not answers:  # the server may hear of the cancel after it hears of the successor
                successor = stub.Generate(greedy(OK_PROMPT, 4, request_id="again"))
                ids = [i async for r in _until_refused(successor) for i in r.delta.token_ids]
                answers += len(ids) == 4
    stats = await tiny.settled()
    assert stats.free_pages + stats.evictable_pages == 15


async def test_case_8_3_an_empty_id_is_made_up_and_a_long_one_is_refused(tiny: System) -> None:
    """Case 8.3: ids that nobody chose never collide."""
    async with tiny.client() as stub:
        calls = [stub.Generate(greedy(OK_PROMPT, 4)) for _ in range(8)]
        answers = await asyncio.gather(*(ids_of(call) for call in calls))
        too_long = await refused(stub.Generate(greedy(OK_PROMPT, 4, request_id="x" * 10_000)))
    assert len({tuple(answer) for answer in answers}) == 1
    assert too_long.reason == "INVALID_FIELD"


async def test_case_3_3_many_prompts_of_one_token_get_one_token_each(
    tiny: System, tiny_dir: Path
) -> None:
    """vllm-project/vllm issues #7632, #6521: sizes of zero and one reached an assertion in the
    engine, which killed every request. Those of zero are among `CASES`.
    """
    async with undisturbed(tiny, tiny_dir), tiny.client() as stub:
        calls = [stub.Generate(greedy([token_id], 1)) for token_id in range(1, 65)]
        answers = await asyncio.gather(*(ids_of(call) for call in calls))
    assert [len(ids) for ids in answers] == [1] * 64
