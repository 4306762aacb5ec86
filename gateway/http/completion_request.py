"""What /v1/completions takes: one prompt or several, each a text or ready ids."""

from __future__ import annotations

from typing import Annotated, TypeAlias, cast

from pydantic import ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from gateway.bounds import MAX_PROMPTS, check_count
from gateway.http.answer_request import ONLY_STREAMED, AnswerRequest, TokenId
from gateway.http.fields import Int32, Listed, Only, one_of

DEFAULT_MAX_TOKENS = 16  # OpenAI's
MOST_LOGPROBS = 5  # OpenAI's, of this route

Ids: TypeAlias = Annotated[Listed[TokenId], Field(json_schema_extra={"minItems": 1})]
Prompt: TypeAlias = str | Ids
Text = Annotated[str, Field(json_schema_extra={"minLength": 1})]
Texts = Annotated[Listed[Text], Field(json_schema_extra={"minItems": 1, "maxItems": MAX_PROMPTS})]
IdLists = Annotated[Listed[Ids], Field(json_schema_extra={"minItems": 1, "maxItems": MAX_PROMPTS})]


ECHO_BESIDE_LOGPROBS = {
    "properties": {"echo": {"const": True}, "logprobs": {"type": "integer"}},
    "required": ["echo", "logprobs"],
}


class CompletionRequest(AnswerRequest):
    model_config = ConfigDict(json_schema_extra=ONLY_STREAMED | {"not": ECHO_BESIDE_LOGPROBS})

    prompt: Annotated[
        Text | Ids | Texts | IdLists,
        one_of("a text, a list of token ids, a list of texts, or a list of lists of token ids"),
    ] = Field(
        description="Each of several prompts gets its choices, in their order, and is a request "
        "of its own: Cancel and Explain know them by the answer's id with -0, -1 and so on."
    )
    max_tokens: Int32 | None = Field(
        None,
        description=f"{DEFAULT_MAX_TOKENS} unless given, or min_tokens, or as many as fit.",
        json_schema_extra={"minimum": 1},
    )
    echo: bool | None = Field(
        None,
        description="The prompt first in the text; only without logprobs. False unless given.",
    )
    logprobs: int | None = Field(
        None,
        description="The log probability of each token, and those of so many likeliest there; "
        "none unless given.",
        ge=0,
        le=MOST_LOGPROBS,
    )
    best_of: Annotated[int | None, Only((None, 1), "more choices than are answered")] = None
    suffix: Annotated[str | None, Only((None, ""), "an answer that leads up to a text")] = None

    @field_validator("logprobs")
    @classmethod
    def _check_logprobs(cls, count: int | None, fields: ValidationInfo) -> int | None:
        if count is not None and fields.data.get("echo"):
            raise PydanticCustomError(
                "echo", "Input should be left out beside echo: a prompt has none"
            )
        return count

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    def prompts(self) -> list[Prompt]:
        """Errors: those of `check_count`, for more than MAX_PROMPTS choices of all together."""
        several = isinstance(self.prompt, list) and any(
            isinstance(part, str | list) for part in self.prompt[:1]
        )
        prompts = cast("list[Prompt]", self.prompt if several else [self.prompt])
        check_count("prompt", len(prompts), MAX_PROMPTS // self.num_choices)
        return prompts
