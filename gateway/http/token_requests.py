"""What /tokenize and /detokenize take and answer: names as vLLM has them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from gateway.bounds import MAX_DETOKENIZED_IDS
from gateway.http.answer_request import TokenId
from gateway.http.chat_request import TOOLS, Messages, Tool
from gateway.http.fields import Asked, Listed, either


class TokenizeRequest(Asked):
    """Either a prompt or messages."""

    model_config = ConfigDict(
        json_schema_extra=either(
            {"prompt": {"type": "string"}, "messages": {"type": "null"}},
            {"messages": {"type": "array"}, "prompt": {"type": "null"}},
        )
    )

    model: str | None = Field(None, min_length=1, description="The served model's name, or any.")
    prompt: str | None = Field(None, json_schema_extra={"minLength": 1})
    messages: Messages | None = None
    tools: Listed[Tool] | None = Field(None, description=TOOLS)
    add_special_tokens: bool | None = Field(
        None, description="Unless given: true for a prompt, false for messages."
    )
    return_token_strs: bool | None = None


class TokenizeAnswer(BaseModel):
    tokens: list[int]
    count: int
    token_strs: list[str] | None  # joined, they are the text of all
    max_model_len: int | None  # null before a runner was seen


class DetokenizeRequest(Asked):
    model: str | None = Field(None, min_length=1, description="The served model's name, or any.")
    tokens: Listed[TokenId] = Field(
        json_schema_extra={"minItems": 1, "maxItems": MAX_DETOKENIZED_IDS}
    )


class DetokenizeAnswer(BaseModel):
    prompt: str  # special tokens shown
