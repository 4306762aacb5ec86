"""What /v1/chat/completions takes: a conversation, and tools that its template may tell of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from gateway.bounds import MAX_MESSAGES, check_num_messages
from gateway.http.answer_request import ONLY_STREAMED, AnswerRequest
from gateway.http.fields import Asked, Int32, Listed, Only, either, one_of, within
from gateway.tokenizer import ChatMessage
from gateway.tools import called_function, json_object
from servicekit.sampling import MAX_LOGPROBS

CONTENT = "a text, or a list of parts of type text"
TOOLS = "For the chat template. A call comes as the model writes it, in the answer's text."

TOP_LOGPROBS_ALONE = {
    "properties": {
        "top_logprobs": {"type": "integer", "minimum": 1},
        "logprobs": {"not": {"const": True}},
    },
    "required": ["top_logprobs"],
}


class TextPart(Asked):
    type: Literal["text"]
    text: str


class CalledFunction(Asked):
    name: str
    arguments: str = Field(description="A JSON object.")

    @field_validator("arguments")
    @classmethod
    def _check_arguments(cls, arguments: str) -> str:
        if json_object(arguments) is None:
            raise PydanticCustomError("no_object", "Input should be the text of a JSON object")
        return arguments


class ToolCall(Asked):
    id: str
    type: Literal["function"]
    function: CalledFunction

    def as_template_takes_it(self) -> dict[str, Any]:
        return called_function(self.id, self.function.name, self.function.arguments)


class Message(Asked):
    model_config = ConfigDict(
        json_schema_extra=either(
            {"content": {"type": ["string", "array"]}},
            {"tool_calls": {"type": "array", "minItems": 1}},
        )
    )
    role: str = Field(description="Which ones there are is up to the model's chat template.")
    name: str | None = None
    tool_calls: Listed[ToolCall] | None = None
    tool_call_id: str | None = None
    content: Annotated[str | Listed[TextPart] | None, one_of(CONTENT)] = Field(
        None,
        description="Parts are joined as they are. Null only beside tool_calls.",
        validate_default=True,
    )
    refusal: str | None = Field(None, description="As answers have it; nothing is done with it.")
    annotations: Annotated[list[JsonValue] | None, Only((None, []), "annotations")] = None
    audio: Annotated[dict[str, JsonValue] | None, Only((None,), "audio")] = None
    function_call: Annotated[
        dict[str, JsonValue] | None, Only((None,), "the older form of tool_calls")
    ] = None

    @field_validator("content")
    @classmethod
    def _check_content(
        cls, content: str | list[TextPart] | None, fields: ValidationInfo
    ) -> str | list[TextPart] | None:
        if content is None and not fields.data.get("tool_calls"):
            raise PydanticCustomError("no_content", "Input should be {words}", {"words": CONTENT})
        return content

    def as_template_takes_it(self) -> ChatMessage:
        parts = self.content or ""
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        more: dict[str, Any] = {}
        if self.name is not None:
            more["name"] = self.name
        if self.tool_calls:
            more["tool_calls"] = [call.as_template_takes_it() for call in self.tool_calls]
        if self.tool_call_id is not None:
            more["tool_call_id"] = self.tool_call_id
        return ChatMessage(self.role, text, more)


def _check_num_messages(messages: Any) -> Any:
    """Before each of them is looked at. Errors: InvalidArgument."""
    if isinstance(messages, list):
        check_num_messages(len(messages))
    return messages


Messages = Annotated[
    Listed[Message],
    Field(min_length=1, json_schema_extra={"maxItems": MAX_MESSAGES}),
    BeforeValidator(_check_num_messages),
]


class Function(Asked):
    name: str
    description: str | None = None
    parameters: dict[str, JsonValue] | None = Field(None, description="A JSON schema.")
    strict: Annotated[bool | None, Only((None, False), "answers held to a schema")] = None


class Tool(Asked):
    type: Literal["function"]
    function: Function


class ChatRequest(AnswerRequest):
    model_config = ConfigDict(json_schema_extra=ONLY_STREAMED | {"not": TOP_LOGPROBS_ALONE})

    messages: Messages
    max_completion_tokens: Int32 | None = Field(
        None, description="The newer name of max_tokens.", json_schema_extra={"minimum": 1}
    )
    tools: Listed[Tool] | None = Field(None, description=TOOLS)
    tool_choice: Annotated[
        str | dict[str, JsonValue] | None,
        one_of("a text or an object"),
        Only((None, "none", "auto"), "answers held to a call"),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Only((None, True), "at most one call an answer")
    ] = None
    response_format: Annotated[
        dict[str, JsonValue] | None, Only((None, {"type": "text"}), "answers held to a schema")
    ] = None
    store: Annotated[bool | None, Only((None, False), "kept answers")] = None
    service_tier: Annotated[
        str | None, Only((None, "auto", "default"), "answers of another class")
    ] = None
    metadata: dict[str, str] | None = Field(
        None, description="For your own books; nothing is done with it."
    )
    logprobs: bool | None = Field(
        None, description="The log probability of each token; false unless given."
    )
    top_logprobs: int | None = Field(
        None,
        description="And those of so many that were likeliest there; only with logprobs. 0 "
        "unless given.",
        json_schema_extra=within(0, MAX_LOGPROBS),
    )

    @field_validator("max_completion_tokens")
    @classmethod
    def _check_max_completion_tokens(cls, newer: int | None, fields: ValidationInfo) -> int | None:
        if (
            None not in (newer, fields.data.get("max_tokens"))
            and newer != fields.data["max_tokens"]
        ):
            raise PydanticCustomError("two_bounds", "Input should be left out beside max_tokens")
        return newer

    @field_validator("top_logprobs")
    @classmethod
    def _check_top_logprobs(cls, count: int | None, fields: ValidationInfo) -> int | None:
        if count and not fields.data.get("logprobs"):
            raise PydanticCustomError("no_logprobs", "Input should be left out without logprobs")
        return count

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    def offered_tools(self) -> list[dict[str, Any]]:
        return [] if self.tool_choice == "none" else tools_for_template(self.tools)


def turns_for_template(messages: Sequence[Message]) -> list[ChatMessage]:
    return [message.as_template_takes_it() for message in messages]


def tools_for_template(tools: Sequence[Tool] | None) -> list[dict[str, Any]]:
    return [tool.model_dump(exclude_unset=True) for tool in tools or ()]
