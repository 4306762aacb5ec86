"""Tokenize, Detokenize and Cancel of the public service."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from pagewire.v1 import inference_pb2 as pb

from gateway.bounds import MAX_CANCELLED_IDS, MAX_DETOKENIZED_IDS, MAX_MESSAGES
from servicekit.errors import Cancelled, InvalidArgument, NotFound, PagewireError, Reason
from servicekit.status import error_of
from tests.cachesvc.rpc import failure_of
from tests.gateway.fake_cache import tokens
from tests.gateway.front import Front, accepted, served_front
from tests.gateway.tiny_tokenizers import (
    add_bos_by_itself,
    byte_fallback_backend,
    save_model_dir,
)

MESSAGES = [pb.ChatMessage(role="user", content="안녕")]
WITH_BOS = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
TOO_MANY_MESSAGES = [pb.ChatMessage()] * (MAX_MESSAGES + 1)


async def tokenized(front: Front, **fields: object) -> list[int]:
    return list((await front.stub.Tokenize(pb.TokenizeRequest(**fields))).token_ids)


async def error_in(call: grpc.aio.UnaryUnaryCall) -> PagewireError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_of(caught.value)


async def test_a_text_and_a_chat_become_the_ids_that_the_model_would_get(front: Front) -> None:
    assert await tokenized(front, text="a fox", model="tiny") == front.tokenizer.encode("a fox")
    chat = pb.ChatMessages(messages=MESSAGES)
    assert await tokenized(front, chat=chat) == front.tokenizer.encode("user:안녕 ")


async def test_special_tokens_are_added_to_texts_and_not_to_chats_unless_asked_otherwise(
    tmp_path,
) -> None:
    backend = add_bos_by_itself(byte_fallback_backend())
    model_dir = save_model_dir(tmp_path / "model", backend, chat_template=WITH_BOS)
    async with served_front(model_dir, tmp_path / "c") as front:
        bos = front.tokenizer.bos_token_id
        assert (await tokenized(front, text="Hello"))[0] == bos
        assert bos not in await tokenized(front, text="Hello", add_special_tokens=False)
        assert (await tokenized(front, text="<s>Hello")).count(bos) == 1
        for asked in ({}, {"add_special_tokens": False}, {"add_special_tokens": True}):
            ids = await tokenized(front, chat=pb.ChatMessages(messages=MESSAGES), **asked)
            assert ids.count(bos) == 1, "the template writes it"


async def test_pieces_come_when_asked_for(front: Front) -> None:
    asked = await front.stub.Tokenize(pb.TokenizeRequest(text="a fox</s>", with_pieces=True))
    assert list(asked.pieces) == ["a", " ", "fo", "x", "</s>"]
    assert not (await front.stub.Tokenize(pb.TokenizeRequest(text="a fox</s>"))).pieces


async def test_a_long_text_has_all_of_its_pieces(front: Front) -> None:
    text = "하늘 fox " * 1_000
    asked = await front.stub.Tokenize(pb.TokenizeRequest(text=text, with_pieces=True))
    assert len(asked.pieces) == len(asked.token_ids) > 8_192
    assert "".join(asked.pieces) == text


@pytest.mark.parametrize(
    ("asked", "text"),
    [({}, "<s>a fox"), ({"skip_special_tokens": True}, "a fox")],
)
async def test_ids_become_text_with_special_tokens_unless_they_are_to_be_skipped(
    front: Front, asked: dict[str, bool], text: str
) -> None:
    ids = front.tokenizer.encode("<s>a fox")
    answer = await front.stub.Detokenize(pb.DetokenizeRequest(token_ids=ids, **asked))
    assert answer.text == text


async def test_ids_beyond_the_tokenizer_have_no_text_and_beyond_the_model_are_refused(
    front: Front,
) -> None:
    a = front.tokenizer.encode("a")
    assert (await front.stub.Detokenize(pb.DetokenizeRequest(token_ids=[999, *a]))).text == "a"
    error = await error_in(front.stub.Detokenize(pb.DetokenizeRequest(token_ids=[*a, 1000])))
    assert error.reason is Reason.TOKEN_OUT_OF_VOCAB


@pytest.mark.parametrize(
    ("rpc", "request_", "reason", "field"),
    [
        ("Tokenize", pb.TokenizeRequest(), Reason.EMPTY_PROMPT, "prompt"),
        ("Tokenize", pb.TokenizeRequest(text=""), Reason.EMPTY_PROMPT, "prompt"),
        ("Tokenize", pb.TokenizeRequest(chat=pb.ChatMessages()), Reason.EMPTY_PROMPT, "messages"),
        ("Detokenize", pb.DetokenizeRequest(), Reason.INVALID_FIELD, "token_ids"),
        (
            "Detokenize",
            pb.DetokenizeRequest(token_ids=[5] * (MAX_DETOKENIZED_IDS + 1)),
            Reason.INVALID_FIELD,
            "token_ids",
        ),
        (
            "Tokenize",
            pb.TokenizeRequest(chat=pb.ChatMessages(messages=TOO_MANY_MESSAGES)),
            Reason.INVALID_FIELD,
            "messages",
        ),
        ("Cancel", pb.CancelRequest(), Reason.INVALID_FIELD, "request_ids"),
        (
            "Cancel",
            pb.CancelRequest(request_ids=["x"] * (MAX_CANCELLED_IDS + 1)),
            Reason.INVALID_FIELD,
            "request_ids",
        ),
    ],
)
async def test_empty_and_overlong_calls_are_refused_by_field(
    rpc: str, request_: object, reason: Reason, field: str, front: Front
) -> None:
    error = await error_in(getattr(front.stub, rpc)(request_))
    assert isinstance(error, InvalidArgument)
    assert (error.reason, error.metadata) == (reason, {"field": field})


async def test_a_chat_of_too_many_messages_is_refused_before_it_is_rendered(front: Front) -> None:
    """400,000 messages without a character (800 kB) held the event loop for 7 s: no other stream
    went on.
    """
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await anext(aiter(front.stub.Chat(pb.ChatRequest(messages=TOO_MANY_MESSAGES))))
    error = error_of(refused.value)
    assert isinstance(error, InvalidArgument)
    assert error.message == "messages has 4097 entries; it must have 1 to 4096"
    most = pb.ChatMessages(messages=[pb.ChatMessage()] * MAX_MESSAGES)
    assert (await front.stub.Tokenize(pb.TokenizeRequest(chat=most))).token_ids


async def test_another_model_is_not_found(front: Front) -> None:
    calls = [
        front.stub.Tokenize(pb.TokenizeRequest(text="a", model="huge")),
        front.stub.Detokenize(pb.DetokenizeRequest(token_ids=[5], model="huge")),
    ]
    assert [type(await error_in(call)) for call in calls] == [NotFound] * 2


async def test_each_call_counts_under_the_code_that_it_ends_with(front: Front) -> None:
    await tokenized(front, text="a")
    await front.stub.Detokenize(pb.DetokenizeRequest(token_ids=[5]))
    await cancel(front, "nobody")
    await error_in(front.stub.Tokenize(pb.TokenizeRequest()))
    await error_in(front.stub.Detokenize(pb.DetokenizeRequest(token_ids=[5], model="huge")))
    await error_in(front.stub.Cancel(pb.CancelRequest()))
    assert front.totals.requests == {
        ("Tokenize", "OK"): 1,
        ("Detokenize", "OK"): 1,
        ("Cancel", "OK"): 1,
        ("Tokenize", "INVALID_ARGUMENT"): 1,
        ("Detokenize", "NOT_FOUND"): 1,
        ("Cancel", "INVALID_ARGUMENT"): 1,
    }


async def cancel(front: Front, *request_ids: str) -> pb.CancelResponse:
    return await front.stub.Cancel(pb.CancelRequest(request_ids=request_ids))


async def test_a_cancelled_stream_gets_what_came_and_then_cancelled(front: Front) -> None:
    call = front.stub.Generate(pb.GenerateRequest(text="Hi", request_id="a"))
    submit = await front.cache.next("submit")
    front.cache.responses.put_nowait(accepted(submit.key))
    front.cache.responses.put_nowait(tokens(submit.key, *front.tokenizer.encode("so")))
    assert (await call.read()).started.request_id == "a"
    assert (await call.read()).delta.text == "so"
    answer = await cancel(front, "b", "a")
    assert (list(answer.cancelled_ids), list(answer.unknown_ids)) == (["a"], ["b"])
    assert (await front.cache.next("cancel")).key == submit.key
    error = await failure_of(call)
    assert isinstance(error, Cancelled)
    assert (error.reason, "'a'" in error.message) == (Reason.CANCELLED, True)
    again = await cancel(front, "a")
    assert (list(again.cancelled_ids), list(again.unknown_ids)) == ([], ["a"])


async def test_a_request_that_the_manager_has_not_taken_yet_can_be_cancelled(front: Front) -> None:
    call = front.stub.Complete(pb.CompleteRequest(text="Hi", request_id="a"))
    submit = await front.cache.next("submit")
    assert (await cancel(front, "a")).cancelled_ids == ["a"]
    assert (await front.cache.next("cancel")).key == submit.key
    assert isinstance(await error_in(call), Cancelled)


async def test_case_8_3_a_cancelled_id_can_be_sent_again_at_once(front: Front) -> None:
    """Case 8.3: the successor runs, whether or not the older one has heard of its end."""
    older = front.stub.Generate(pb.GenerateRequest(text="Hi", request_id="a"))
    first = await front.cache.next("submit")
    await cancel(front, "a")
    successor = front.stub.Generate(pb.GenerateRequest(text="Hi", request_id="a"))
    assert (await front.cache.next("cancel")).key == first.key
    second = await front.cache.next("submit")
    front.cache.responses.put_nowait(accepted(second.key))
    assert isinstance(await failure_of(older), Cancelled)
    assert (await successor.read()).started.request_id == "a"
    successor.cancel()
    assert (await front.cache.next("cancel")).key == second.key


async def test_a_made_up_id_cancels_the_request_that_started_with_it(front: Front) -> None:
    calls = [front.stub.Generate(pb.GenerateRequest(text="Hi")) for _ in range(2)]
    for _ in calls:
        front.cache.responses.put_nowait(accepted((await front.cache.next("submit")).key))
    started = [(await call.read()).started.request_id for call in calls]
    assert (await cancel(front, started[1])).cancelled_ids == [started[1]]
    assert isinstance(await failure_of(calls[1]), Cancelled)
    calls[0].cancel()
    await asyncio.gather(calls[0].code(), return_exceptions=True)
