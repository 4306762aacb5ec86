"""The chat's client against an InferenceService that breaks off where the test says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import grpc
import pytest
from pagewire.v1 import inference_pb2 as pb
from pagewire.v1 import inference_pb2_grpc

from gateway.answer_figures import Answered
from gateway.chat_client import FIRST_TRIES, ChatClient, ChatParams
from gateway.chat_shell import ChatEvent, Lost, Turn
from gateway.connection import Connection
from servicekit.errors import (
    FailedPrecondition,
    FatalError,
    InvalidArgument,
    PagewireError,
    Reason,
    Unavailable,
)
from tests.cachesvc.rpc import served

TOKENS = {1: "The", 2: " sky", 3: " is", 4: " blue", 5: "."}
GONE = Unavailable(Reason.SESSION_LOST, "the server went away")


class Try(NamedTuple):
    """What one call answers: so many tokens, text of the next one, perhaps a failure."""

    num_tokens: int = 5
    text_ahead: str = ""
    failure: PagewireError | None = None


class BrokenService(inference_pb2_grpc.InferenceServiceServicer):
    """Answers "The sky is blue." as far as each of the tries goes."""

    def __init__(self, *tries: Try) -> None:
        self._tries = iter(tries)
        self.requests: list[pb.ChatRequest] = []

    async def Chat(  # noqa: N802 # the RPC's name
        self, request: pb.ChatRequest, context: Any
    ) -> AsyncIterator[pb.ChatResponse]:
        self.requests.append(request)
        num_tokens, text_ahead, failure = next(self._tries)
        had = list(request.resume_token_ids)
        resumed_text = "".join(TOKENS[token_id] for token_id in had)
        yield pb.ChatResponse(started=pb.Started(resumed_text=resumed_text))
        for token_id in range(len(had) + 1, num_tokens + 1):
            yield pb.ChatResponse(delta=pb.Delta(text=TOKENS[token_id], token_ids=[token_id]))
        if text_ahead:
            yield pb.ChatResponse(delta=pb.Delta(text=text_ahead))
        if failure is not None:
            raise failure
        usage = pb.Usage(prompt_tokens=9, completion_tokens=5)
        yield pb.ChatResponse(finished=pb.Finished(reason=pb.FINISH_REASON_LENGTH, usage=usage))


async def events_of(
    service: BrokenService, waits_s: list[float] | None = None, *, is_patient: bool = False
) -> list[ChatEvent]:
    async def sleep(seconds: float) -> None:
        if waits_s is not None:
            waits_s.append(seconds)

    add = inference_pb2_grpc.add_InferenceServiceServicer_to_server
    params = ChatParams("sky", max_tokens=9, temperature=0.5)
    async with served(add, service) as address:
        client = ChatClient(Connection(address), params, sleep, is_patient=is_patient)
        return [event async for event in client.answer([Turn("user", "Sky?")], seed=7)]


def text_of(events: list[ChatEvent]) -> str:
    return "".join(event for event in events if isinstance(event, str))


async def test_an_answer_comes_with_its_end_and_the_question_has_all_parameters() -> None:
    service = BrokenService(Try())
    events = await events_of(service)
    assert events == [*TOKENS.values(), Answered(9, 5, is_cut=True)]
    (request,) = service.requests
    assert list(request.messages) == [pb.ChatMessage(role="user", content="Sky?")]
    assert (request.model, request.stop.max_tokens) == ("sky", 9)
    assert (request.sampling.temperature, request.sampling.seed) == (0.5, 7)


async def test_after_a_loss_the_same_request_goes_on_with_the_ids_that_came() -> None:
    service = BrokenService(Try(2, failure=GONE), Try(2, failure=GONE), Try(4, failure=GONE), Try())
    events = await events_of(service)
    assert text_of(events) == "The sky is blue."
    assert events.count(Lost("the server went away")) == 3
    first, *again = service.requests
    assert [list(request.resume_token_ids) for request in again] == [[1, 2], [1, 2], [1, 2, 3, 4]]
    for request in again:
        del request.resume_token_ids[:]
        assert request == first


async def test_text_that_came_before_its_id_does_not_come_twice() -> None:
    service = BrokenService(Try(2, " i", GONE), Try(2, " is b", GONE), Try())
    assert text_of(await events_of(service)) == "The sky is blue."


async def test_waits_grow_until_the_server_answers_again() -> None:
    """Each try that gets as far as Started begins anew."""
    waits_s: list[float] = []
    refused = grpc_refuses(3)
    await events_of(refused, waits_s)
    assert waits_s == [0.05, 0.1, 0.2, 0.05]


def grpc_refuses(times: int) -> BrokenService:
    """A service that refuses so many calls outright, then breaks off once."""

    class Refusing(BrokenService):
        refusals = times

        async def Chat(self, request: pb.ChatRequest, context: Any):  # noqa: N802 # the RPC's name
            if self.refusals:
                self.refusals -= 1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "connection refused")
            async for response in super().Chat(request, context):
                yield response

    return Refusing(Try(1, failure=GONE), Try())


async def test_a_server_that_never_answered_is_given_up_after_some_tries() -> None:
    """A chat from a pipe to a wrong address never ended: it waited for that server to come back."""
    waits_s: list[float] = []
    with pytest.raises(FatalError, match="is not reached: connection refused"):
        await events_of(grpc_refuses(FIRST_TRIES), waits_s)
    assert len(waits_s) == FIRST_TRIES - 1


async def test_a_server_that_answered_once_is_waited_for_without_end() -> None:
    tries = [Try(2, failure=GONE)] * 2 * FIRST_TRIES
    assert text_of(await events_of(BrokenService(*tries, Try()))) == "The sky is blue."


async def test_whoever_is_patient_waits_for_a_first_answer_without_end() -> None:
    service = grpc_refuses(2 * FIRST_TRIES)
    assert text_of(await events_of(service, is_patient=True)) == "The sky is blue."


async def test_what_is_wrong_with_the_request_is_not_tried_again() -> None:
    wrong = InvalidArgument(Reason.CHAT_TEMPLATE, "no such role")
    service = BrokenService(Try(0, failure=wrong))
    with pytest.raises(InvalidArgument, match="no such role"):
        await events_of(service)
    assert len(service.requests) == 1


async def test_a_server_that_comes_back_with_another_model_is_not_believed() -> None:
    class OtherModel(BrokenService):
        async def Chat(self, request: pb.ChatRequest, context: Any):  # noqa: N802 # the RPC's name
            async for response in super().Chat(request, context):
                if request.resume_token_ids and response.HasField("started"):
                    response.started.resumed_text = "Das"
                yield response

    with pytest.raises(FailedPrecondition, match="another model"):
        await events_of(OtherModel(Try(1, failure=GONE), Try()))
