"""Tools, and calls of them, over gRPC: what the template gets is what it gets over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest
from pagewire.v1 import inference_pb2 as pb
from pydantic import ValidationError

from gateway.http.chat_request import ChatRequest, tools_for_template, turns_for_template
from gateway.inference_codec import decode_tools, decode_turns
from servicekit.errors import InvalidArgument
from tests.cachesvc.rpc import failure_of
from tests.gateway.front import served_front
from tests.gateway.tiny_tokenizers import byte_level_backend, save_model_dir

SCHEMA = '{"type": "object", "properties": {"z": {"type": "integer", "minimum": 1}, "a": {}}}'
ARGUMENTS = '{"z": 3, "a": [1.5, null]}'
CALL = pb.ToolCall(id="c1", name="f", arguments_json=ARGUMENTS)
MESSAGES = [
    pb.ChatMessage(role="user", content="Hi", name="Ann"),
    pb.ChatMessage(role="assistant", tool_calls=[CALL]),
    pb.ChatMessage(role="tool", content="7", tool_call_id="c1"),
]
TOOLS = [pb.Tool(name="f", description="does", parameters_json=SCHEMA), pb.Tool(name="g")]
OVER_HTTP = {
    "model": "m",
    "messages": [
        {"role": "user", "content": "Hi", "name": "Ann"},
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "f", "arguments": ARGUMENTS},
                }
            ],
        },
        {"role": "tool", "content": "7", "tool_call_id": "c1"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "f",
                "description": "does",
                "parameters": {
                    "type": "object",
                    "properties": {"z": {"type": "integer", "minimum": 1}, "a": {}},
                },
            },
        },
        {"type": "function", "function": {"name": "g"}},
    ],
}


def test_a_template_gets_the_same_over_both_surfaces() -> None:
    http = ChatRequest.model_validate(OVER_HTTP)
    assert decode_turns(MESSAGES) == turns_for_template(http.messages)
    assert decode_tools(TOOLS) == tools_for_template(http.tools)
    properties = decode_tools(TOOLS)[0]["function"]["parameters"]["properties"]
    assert list(properties) == ["z", "a"], "in the caller's order"


@pytest.mark.parametrize("text", ["", "[1]", "{", '"a"', "[" * 100_000])
def test_what_is_no_json_object_is_refused_by_name(text: str) -> None:
    call = pb.ToolCall(name="f", arguments_json=text)
    with pytest.raises(InvalidArgument) as caught:
        decode_turns([pb.ChatMessage(role="assistant", tool_calls=[call])])
    assert caught.value.metadata["field"] == "messages.tool_calls.arguments_json"
    with pytest.raises(InvalidArgument) as caught:
        decode_tools([pb.Tool(name="f", parameters_json=text)])
    assert caught.value.metadata["field"] == "tools.parameters_json"


@pytest.mark.parametrize(
    "text", ['{"a": "\\ud800"}', '{"\\udfff": 1}', '{"a": ["\\udc00\\ud800"]}']
)
def test_half_a_character_in_an_object_is_refused_on_both_surfaces(text: str) -> None:
    """The fuzz escaped half of a surrogate pair in the arguments of a call. json.loads makes a text
    of it, the template wrote that down, and the tokenizer failed: INTERNAL, and 500 over HTTP.
    """
    test_what_is_no_json_object_is_refused_by_name(text)
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": text}}
    turn = {"role": "assistant", "tool_calls": [call]}
    with pytest.raises(ValidationError, match="should be the text of a JSON object"):
        ChatRequest.model_validate({"model": "m", "messages": [turn]})


async def test_they_reach_the_template_of_chats_and_of_tokenize(tmp_path: Path) -> None:
    template = "{% for t in tools or [] %}<{{ t.function.name }}>{% endfor %}{{ messages[0].name }}"
    model_dir = save_model_dir(tmp_path / "m", byte_level_backend(), chat_template=template)
    async with served_front(model_dir, tmp_path / "c") as front:
        conversation = pb.ChatMessages(messages=MESSAGES, tools=TOOLS)
        tokenized = await front.stub.Tokenize(pb.TokenizeRequest(chat=conversation))
        said = await front.stub.Detokenize(pb.DetokenizeRequest(token_ids=tokenized.token_ids))
        assert said.text == "<f><g>Ann"
        front.stub.Chat(pb.ChatRequest(messages=MESSAGES, tools=TOOLS))
        submit = await front.cache.next("submit")
        assert list(submit.prompt_ids) == list(tokenized.token_ids)
        bad = pb.ChatRequest(messages=MESSAGES, tools=[pb.Tool(name="f", parameters_json="[]")])
        refused = await failure_of(front.stub.Chat(bad))
        assert refused.metadata["field"] == "tools.parameters_json"
