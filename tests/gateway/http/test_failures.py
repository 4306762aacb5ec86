"""What the manager fails a request with, as a status and OpenAI's error object."""

from __future__ import annotations

import json

import pytest
from google.protobuf.duration_pb2 import Duration
from pagewire.v1 import cache_pb2

from gateway.http.errors import STATUSES
from servicekit.errors import PagewireError
from tests.gateway.fake_cache import tokens
from tests.gateway.front import accepted
from tests.gateway.http.surface import CHAT, COMPLETIONS, Surface, error_of


def failed(key: int, code: str, reason: str, **fields: object) -> cache_pb2.SessionResponse:
    failure = cache_pb2.Rejected(key=key, code=code, reason=reason, message="it is so", **fields)
    ended = cache_pb2.RequestFinished(key=key, cause=cache_pb2.FINISH_CAUSE_FAILED, failure=failure)
    return cache_pb2.SessionResponse(finished=[ended])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("code", "reason", "status", "kind"),
    [
        ("INVALID_ARGUMENT", "PROMPT_EXCEEDS_POOL", 400, "invalid_request_error"),
        ("INVALID_ARGUMENT", "CONTEXT_TOO_LONG", 400, "invalid_request_error"),
        ("NOT_FOUND", "MODEL_NOT_FOUND", 404, "invalid_request_error"),
        ("ALREADY_EXISTS", "DUPLICATE_REQUEST_ID", 409, "invalid_request_error"),
        ("RESOURCE_EXHAUSTED", "QUEUE_FULL", 429, "rate_limit_error"),
        ("INTERNAL", "PLAN_REFUSED", 500, "server_error"),
        ("INTERNAL", "RUNNER_DIED_TWICE", 500, "server_error"),
        ("UNAVAILABLE", "DRAINING", 503, "server_error"),
        ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", 504, "server_error"),
    ],
)
async def test_case_8_5_a_failure_before_the_first_byte_is_a_status(
    surface: Surface, stream: bool, code: str, reason: str, status: int, kind: str
) -> None:
    """Case 8.5: in stream mode, too."""
    call = surface.ask(COMPLETIONS, stream=stream)
    submit = await surface.submitted()
    surface.put(failed(submit.key, code, reason))
    response = await call
    assert response.status_code == status
    assert error_of(response) == {
        "message": "it is so",
        "type": kind,
        "param": None,
        "code": "context_length_exceeded" if reason == "CONTEXT_TOO_LONG" else reason.lower(),
    }
    assert surface.front.totals.requests == {(COMPLETIONS, code): 1}


def test_every_code_that_an_error_of_ours_has_is_a_status() -> None:
    assert {kind.code_name for kind in PagewireError.__subclasses__()} <= set(STATUSES)


async def test_a_request_that_runners_died_of_is_not_to_be_sent_again(surface: Surface) -> None:
    """OpenAI's clients do so by themselves after a 500, unless they are told."""
    call = surface.ask(CHAT)
    submit = await surface.submitted()
    surface.put(failed(submit.key, "INTERNAL", "RUNNER_DIED_TWICE"))
    assert (await call).headers["x-should-retry"] == "false"


async def test_a_full_queue_says_when_to_come_again(surface: Surface) -> None:
    call = surface.ask(CHAT)
    submit = await surface.submitted()
    retry = Duration(seconds=1, nanos=500_000_000)
    surface.put(failed(submit.key, "RESOURCE_EXHAUSTED", "QUEUE_FULL", retry_after=retry))
    response = await call
    assert (response.status_code, response.headers["retry-after"]) == (429, "2")


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("prompt", "messages"),
        ("stop.max_tokens", "max_completion_tokens"),
        ("stop.min_tokens", "min_tokens"),
        ("sampling.logit_bias", "logit_bias"),
    ],
)
async def test_fields_of_the_engine_have_their_names_of_this_surface(
    surface: Surface, field: str, param: str
) -> None:
    call = surface.ask(CHAT, max_completion_tokens=5)
    submit = await surface.submitted()
    rejected = cache_pb2.Rejected(
        key=submit.key,
        code="INVALID_ARGUMENT",
        reason="INVALID_FIELD",
        message="stop.min_tokens 9 > stop.max_tokens",
        metadata={"field": field},
    )
    surface.put(cache_pb2.SessionResponse(rejected=[rejected]))
    error = error_of(await call)
    assert error["param"] == param
    assert error["message"] == "min_tokens 9 > max_completion_tokens"


async def test_a_failure_after_the_first_chunk_is_an_event_and_the_last_one(
    surface: Surface,
) -> None:
    call = surface.ask(CHAT, stream=True)
    submit = await surface.submitted()
    surface.put(accepted(submit.key), tokens(submit.key, *surface.tokenizer.encode("half")))
    surface.put(failed(submit.key, "UNAVAILABLE", "SESSION_LOST"))
    response = await call
    assert response.status_code == 200
    *chunks, error, rest = response.text.split("\n\n")
    deltas = [json.loads(chunk.removeprefix("data: "))["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta["content"] for delta in deltas) == "half"
    name, told = error.split("\n")
    assert (name, rest) == ("event: error", "")
    assert json.loads(told.removeprefix("data: ")) == {
        "error": {
            "message": "it is so",
            "type": "server_error",
            "param": None,
            "code": "session_lost",
        }
    }
    assert surface.front.totals.requests == {(CHAT, "UNAVAILABLE"): 1}


async def test_what_nobody_foresaw_is_our_fault_and_tells_nothing_of_it(
    surface: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> list[int]:
        raise RuntimeError("a secret")

    monkeypatch.setattr("gateway.off_loop.encode", broken)
    response = await surface.post(COMPLETIONS)
    error = error_of(response)
    assert (response.status_code, error["type"], error["code"]) == (500, "server_error", "internal")
    assert "secret" not in response.text
    assert surface.front.totals.requests == {(COMPLETIONS, "INTERNAL"): 1}
