"""What cannot be is refused with 400 and the field's own name, before the manager hears of it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gateway.bounds import MAX_MESSAGES
from gateway.http.chat_request import ChatRequest
from gateway.http.completion_request import CompletionRequest
from gateway.http.fields import Asked
from gateway.http.token_requests import DetokenizeRequest
from tests.gateway.http.surface import (
    BODIES,
    CHAT,
    COMPLETIONS,
    MAX_MESSAGE_BYTES,
    Surface,
    error_of,
)

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f"}}
IMAGE = [{"type": "image_url", "image_url": {"url": "x"}}]
JSON = {"content-type": "application/json"}
BOTH: dict[str, tuple[dict[str, Any], str, str]] = {
    "a misspelt field": ({"temprature": 1}, "temprature", "did you mean temperature"),
    "a field of another kind": ({"frobnicate": 1}, "frobnicate", "is no field of this request"),
    "a model that is empty": ({"model": ""}, "model", "at least 1 character"),
    "no model": ({"model": None}, "model", "valid string"),
    "a word for a number": ({"temperature": "hot"}, "temperature", "'hot'"),
    "a number in quotes": ({"max_tokens": "3"}, "max_tokens", "valid integer"),
    "true for a number": ({"top_k": True}, "top_k", "valid integer"),
    "a negative temperature": ({"temperature": -1}, "temperature", "temperature is -1"),
    "top_p 0": ({"top_p": 0}, "top_p", "top_p is 0"),
    "top_k -2": ({"top_k": -2}, "top_k", "top_k is -2"),
    "min_p over 1": ({"min_p": 1.5}, "min_p", "min_p is 1.5"),
    "repetition_penalty 0": ({"repetition_penalty": 0}, "repetition_penalty", "greater than 0"),
    "presence_penalty 3": ({"presence_penalty": 3}, "presence_penalty", "from -2 to 2"),
    "frequency_penalty -3": ({"frequency_penalty": -3}, "frequency_penalty", "from -2 to 2"),
    "a seed of 65 bits": ({"seed": 2**64}, "seed", "less than or equal"),
    "top_k of 33 bits": ({"top_k": 2**32}, "top_k", "less than or equal"),
    "max_tokens of 33 bits": ({"max_tokens": 2**32}, "max_tokens", "less than or equal"),
    "too many biases": (
        {"logit_bias": {str(token_id): 1 for token_id in range(1025)}},
        "logit_bias",
        "at most 1024",
    ),
    "a bias for a word": ({"logit_bias": {"the": 1}}, "logit_bias.the", "match"),
    "a bias of 33 bits": ({"logit_bias": {str(2**32): 1}}, f"logit_bias.{2**32}", "match"),
    "a bias that is no number": ({"logit_bias": {"5": "x"}}, "logit_bias.5", "valid number"),
    "a bias over 100": ({"logit_bias": {"5": 101}}, "logit_bias", "101"),
    "one bias in two spellings": ({"logit_bias": {"5": 1, "05": 1}}, "logit_bias", "twice"),
    "a stop that is a number": ({"stop": 3}, "stop", "a text or a list of texts"),
    "a stop among numbers": ({"stop": ["a", 3]}, "stop", "a text or a list of texts"),
    "an empty stop": ({"stop": ""}, "stop", "empty"),
    "an empty stop among others": ({"stop": ["a", ""]}, "stop", "empty"),
    "too many stops": ({"stop": ["a"] * 65}, "stop", "65"),
    "a long stop": ({"stop": "x" * 257}, "stop", "257"),
    "too many stop ids": ({"stop_token_ids": [1] * 65}, "stop_token_ids", "65"),
    "a stop id over the vocabulary": ({"stop_token_ids": [1000]}, "stop_token_ids", "1000"),
    "a stop id of 33 bits": ({"stop_token_ids": [2**32]}, "stop_token_ids[0]", "less than"),
    "usage without a stream": ({"stream_options": {}}, "stream_options", "without stream"),
    "an unknown stream option": (
        {"stream": True, "stream_options": {"x": 1}},
        "stream_options.x",
        "is no field",
    ),
    "too many choices": ({"n": 129}, "n", "less than or equal to 128"),
    "no choice": ({"n": 0}, "n", "greater than or equal to 1"),
    "log probabilities of the prompt": (
        {"prompt_logprobs": 1},
        "prompt_logprobs",
        "not supported yet",
    ),
}
OF_CHAT: dict[str, tuple[dict[str, Any], str, str]] = {
    "no messages": ({"messages": []}, "messages", "at least 1"),
    "messages that are text": ({"messages": "Hi"}, "messages", "valid list"),
    "a message without content": (
        {"messages": [USER, {"role": "user"}]},
        "messages[1].content",
        "a text, or a list of parts",
    ),
    "an image": (
        {"messages": [{"role": "user", "content": IMAGE}]},
        "messages[0].content",
        "parts of type text",
    ),
    "a message of no role": ({"messages": [{"content": "Hi"}]}, "messages[0].role", "missing"),
    "an unknown member of a message": (
        {"messages": [USER | {"voice": {}}]},
        "messages[0].voice",
        "is no field",
    ),
    "a call whose arguments are no JSON": (
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "id": "1",
                            "type": "function",
                            "function": {"name": "f", "arguments": "[1]"},
                        }
                    ],
                }
            ]
        },
        "messages[0].tool_calls[0].function.arguments",
        "the text of a JSON object",
    ),
    "two bounds": (
        {"max_tokens": 3, "max_completion_tokens": 4},
        "max_completion_tokens",
        "left out beside max_tokens",
    ),
    "top log probabilities alone": ({"top_logprobs": 3}, "top_logprobs", "left out without"),
    "too many top log probabilities": (
        {"logprobs": True, "top_logprobs": 21},
        "top_logprobs",
        "top_logprobs is 21; it must be from 0 to 20",
    ),
    "a forced call": (
        {"tools": [TOOL], "tool_choice": "required"},
        "tool_choice",
        "not supported yet",
    ),
    "a tool choice that is a number": (
        {"tool_choice": 5},
        "tool_choice",
        "a text or an object",
    ),
    "a schema": (
        {"response_format": {"type": "json_object"}},
        "response_format",
        "not supported yet",
    ),
}
OF_COMPLETIONS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a prompt that is a number": ({"prompt": 3}, "prompt", "a text, a list of token ids"),
    "a prompt of both kinds": ({"prompt": ["a", 3]}, "prompt", "a text, a list of token ids"),
    "an id of 33 bits": ({"prompt": [[5], [2**32]]}, "prompt", "a text, a list of token ids"),
    "an id over the vocabulary": ({"prompt": [1000]}, "prompt", "1000"),
    "a negative id": ({"prompt": [-1]}, "prompt", "-1"),
    "too many prompts": ({"prompt": [[5]] * 1025}, "prompt", "1025"),
    "too many choices of all prompts": ({"prompt": [[5]] * 129, "n": 8}, "prompt", "1 to 128"),
    "too many log probabilities": ({"logprobs": 6}, "logprobs", "less than or equal to 5"),
    "log probabilities below 0": ({"logprobs": -1}, "logprobs", "greater than or equal to 0"),
    "log probabilities beside echo": (
        {"logprobs": 0, "echo": True},
        "logprobs",
        "left out beside echo",
    ),
    "an echo of an id over the vocabulary": ({"prompt": [1000], "echo": True}, "prompt", "1000"),
    "the best of some": ({"best_of": 2}, "best_of", "not supported yet"),
    "a suffix": ({"suffix": "x"}, "suffix", "not supported yet"),
}
CASES = [
    pytest.param(path, *case, id=f"{path}: {name}")
    for path, cases in (
        (CHAT, BOTH | OF_CHAT),
        (COMPLETIONS, BOTH | OF_COMPLETIONS),
    )
    for name, case in cases.items()
]


@pytest.mark.parametrize(("path", "fields", "param", "words"), CASES)
async def test_bad_input_is_refused_by_name(
    surface: Surface, path: str, fields: dict, param: str, words: str
) -> None:
    response = await surface.post(path, **fields)
    error = error_of(response)
    assert response.status_code == 400
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error["code"] in ("invalid_field", "token_out_of_vocab")
    assert words in error["message"]
    assert param.partition("[")[0].partition(".")[0] in error["message"]
    assert surface.cache.commands.empty()


@pytest.mark.parametrize("path", BODIES)
async def test_an_unknown_model_is_not_found(surface: Surface, path: str) -> None:
    response = await surface.post(path, model="gpt-17")
    assert response.status_code == 404
    assert error_of(response) == {
        "message": "model 'gpt-17' is not served; 'tiny' is",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "the body is not JSON: EOF"),
        (b"\xff", "the body is not JSON"),
        (b"[" * 8000, "the body is not JSON: recursion limit exceeded"),
        (b'{"model": "\\ud800"}', "the body is not JSON: "),  # half of a surrogate pair
        (b"[]", "the body must be a JSON object"),
        (b"null", "the body must be a JSON object"),
        (b"", "the body must be a JSON object"),
    ],
)
async def test_a_body_that_is_no_json_object_is_said_to_be_none(
    surface: Surface, body: bytes, words: str
) -> None:
    response = await surface.http.post(CHAT, content=body, headers=JSON)
    error = error_of(response)
    assert response.status_code == 400
    assert (error["type"], error["param"], error["code"]) == (
        "invalid_request_error",
        None,
        "invalid_field",
    )
    assert words in error["message"]


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_more_messages_than_max_messages_are_refused_before_any_is_looked_at(
    surface: Surface, path: str
) -> None:
    """A body of some megabytes holds 100,000 messages without a character; template and tokenizer
    worked on them on the event loop, and every stream of the gateway stood still for seconds.
    """
    response = await surface.post(path, prompt=None, messages=[0] * (MAX_MESSAGES + 1))
    error = error_of(response)
    assert (response.status_code, error["param"]) == (400, "messages")
    assert error["message"] == "messages has 4097 entries; it must have 1 to 4096"


async def test_a_misspelt_field_of_any_length_is_named_by_its_start(surface: Surface) -> None:
    """One of 3.9 MB was said back twice, and compared with every field at full length, all on the
    event loop.
    """
    long = "temperature" * 1_000
    for fields in ({long: 1}, {"logit_bias": {long: 1}}, {"response_format": {"type": long}}):
        response = await surface.post(CHAT, **fields)
        assert response.status_code == 400
        assert len(response.text) < 500
    error = error_of(await surface.post(CHAT, **{long: 1}))
    assert error["param"] == long[:99] + "…"
    assert error["message"] == f"{error['param']} is no field of this request"


async def test_not_a_number_is_refused_by_name(surface: Surface) -> None:
    body = b'{"model": "tiny", "prompt": "Hi", "temperature": NaN}'
    response = await surface.http.post(COMPLETIONS, content=body, headers=JSON)
    assert (response.status_code, error_of(response)["param"]) == (400, "temperature")


async def test_a_body_without_its_content_type_is_told_which(surface: Surface) -> None:
    response = await surface.http.post(CHAT, content=b'{"model": "tiny"}')
    assert response.status_code == 400
    assert "Content-Type: application/json" in error_of(response)["message"]


async def test_case_8_7_a_long_body_is_refused_with_413(surface: Surface) -> None:
    """Case 8.7: one client must not fill memory."""
    response = await surface.post(COMPLETIONS, prompt="x" * MAX_MESSAGE_BYTES)
    error = error_of(response)
    assert response.status_code == 413
    assert error["code"] == "message_too_large"
    assert f"max_message_bytes {MAX_MESSAGE_BYTES}" in error["message"]
    assert surface.front.totals.requests[COMPLETIONS, "RESOURCE_EXHAUSTED"] == 1


async def test_a_body_of_just_the_longest_length_is_read(surface: Surface) -> None:
    body = b'{"prompt": "Hi"}'
    response = await surface.http.post(
        "/tokenize", content=body.ljust(MAX_MESSAGE_BYTES), headers=JSON
    )
    assert response.status_code == 200


async def test_no_such_path_and_no_such_method_have_the_same_shape(surface: Surface) -> None:
    nowhere = await surface.http.get("/v1/nowhere")
    assert (nowhere.status_code, error_of(nowhere)["type"]) == (404, "invalid_request_error")
    other = await surface.http.get(CHAT)
    assert (other.status_code, other.headers["allow"]) == (405, "POST")
    assert error_of(other)["message"] == f"GET {CHAT}: the path has other methods"


@pytest.mark.parametrize(
    ("model", "path", "fields"),
    [
        (ChatRequest, CHAT, {"messages": [1] * 50}),
        (ChatRequest, CHAT, {"messages": [{"role": "user", "content": [1] * 50}]}),
        (ChatRequest, CHAT, {"tools": [1] * 50}),
        (ChatRequest, CHAT, {"stop_token_ids": ["x"] * 50}),
        (ChatRequest, CHAT, {f"unknown{idx}": 1 for idx in range(50)}),
        (CompletionRequest, COMPLETIONS, {"prompt": [[None] * 50] * 50}),
        (DetokenizeRequest, "/detokenize", {"tokens": ["x"] * 50}),
    ],
)
def test_a_body_that_is_wrong_throughout_costs_one_error(
    model: type[Asked], path: str, fields: dict[str, Any]
) -> None:
    """The rest of a body of some megabytes would cost seconds of the loop and gigabytes."""
    with pytest.raises(ValidationError) as refused:
        model.model_validate(BODIES[path] | fields)
    assert refused.value.error_count() == 1
