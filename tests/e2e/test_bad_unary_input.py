"""Bad input of the calls that answer once: its code, its reason and its field; a neighbour does not
notice.
"""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from pagewire.v1 import inference_pb2 as pb

from servicekit.status import error_of
from tests.e2e.neighbour import undisturbed
from tests.e2e.system import System
from tests.e2e.tiny_model import VOCAB_SIZE

INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
TOO_LARGE = grpc.StatusCode.RESOURCE_EXHAUSTED
CASES = {
    "a priority over 100": (
        "Complete",
        pb.CompleteRequest(text="hi", priority=101),
        INVALID,
        "INVALID_FIELD",
        "priority",
    ),
    "a priority below -100": (
        "Complete",
        pb.CompleteRequest(text="hi", priority=-101),
        INVALID,
        "INVALID_FIELD",
        "priority",
    ),
    "a salt of 257 bytes, in 129 characters": (
        "Complete",
        pb.CompleteRequest(text="hi", cache_salt="é" * 128 + "x"),
        INVALID,
        "INVALID_FIELD",
        "cache_salt",
    ),
    "nothing to tokenize": ("Tokenize", pb.TokenizeRequest(), INVALID, "EMPTY_PROMPT", "prompt"),
    "an empty text": ("Tokenize", pb.TokenizeRequest(text=""), INVALID, "EMPTY_PROMPT", "prompt"),
    "a chat without messages": (
        "Tokenize",
        pb.TokenizeRequest(chat=pb.ChatMessages()),
        INVALID,
        "EMPTY_PROMPT",
        "messages",
    ),
    "a text for another model": (
        "Tokenize",
        pb.TokenizeRequest(text="hi", model="gpt-17"),
        NOT_FOUND,
        "MODEL_NOT_FOUND",
        "model",
    ),
    "a text over max_message_bytes": (
        "Tokenize",
        pb.TokenizeRequest(text="x" * 70_000),
        TOO_LARGE,
        "MESSAGE_TOO_LARGE",
        "TokenizeRequest",
    ),
    "no ids": ("Detokenize", pb.DetokenizeRequest(), INVALID, "INVALID_FIELD", "token_ids"),
    "an id over the vocabulary": (
        "Detokenize",
        pb.DetokenizeRequest(token_ids=[1, VOCAB_SIZE]),
        INVALID,
        "TOKEN_OUT_OF_VOCAB",
        "token_ids",
    ),
    "a negative id": (
        "Detokenize",
        pb.DetokenizeRequest(token_ids=[-1]),
        INVALID,
        "TOKEN_OUT_OF_VOCAB",
        "token_ids",
    ),
    "ids for another model": (
        "Detokenize",
        pb.DetokenizeRequest(token_ids=[1], model="gpt-17"),
        NOT_FOUND,
        "MODEL_NOT_FOUND",
        "model",
    ),
    "nobody to cancel": ("Cancel", pb.CancelRequest(), INVALID, "INVALID_FIELD", "request_ids"),
    "too many to cancel": (
        "Cancel",
        pb.CancelRequest(request_ids=["x"] * 1_025),
        INVALID,
        "INVALID_FIELD",
        "request_ids",
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_bad_input_is_refused_by_name_and_disturbs_nobody(
    name: str, tiny: System, tiny_dir: Path
) -> None:
    rpc, request, code, reason, field = CASES[name]
    async with undisturbed(tiny, tiny_dir), tiny.client() as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(stub, rpc)(request)
    error = error_of(caught.value)
    assert (caught.value.code(), error.reason, error.metadata["field"]) == (code, reason, field)
    assert field in error.message


async def test_bounds_themselves_are_allowed(tiny: System) -> None:
    stop = pb.StopParams(max_tokens=1)
    async with tiny.client() as stub:
        for priority in (-100, 100):
            request = pb.CompleteRequest(
                text="hi", stop=stop, priority=priority, cache_salt="é" * 128
            )
            assert (await stub.Complete(request)).finished.usage.completion_tokens == 1
        answer = await stub.Cancel(pb.CancelRequest(request_ids=[f"{nth}" for nth in range(1_024)]))
        assert len(answer.unknown_ids) == 1_024
