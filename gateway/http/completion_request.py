"""What /v1/completions takes: one prompt or several, each a text or ready ids."""

from __future__ import annotations

from typing import Annotated, TypeAlias, cast

from pydantic import Field

from gateway.http.answer_request import AnswerRequest, TokenId
from gateway.http.fields import Int32, Listed, Only, one_of
from servicekit.errors import InvalidArgument, Reason

MAX_PROMPTS = 1024
DEFAULT_MAX_TOKENS = 16  # OpenAI's

Ids: TypeAlias = Annotated[Listed[TokenId], Field(json_schema_extra={"minItems": 1})]
Prompt: TypeAlias = str | Ids
Text = Annotated[str, Field(json_schema_extra={"minLength": 1})]
Texts = Annotated[Listed[Text], Field(json_schema_extra={"minItems": 1, "maxItems": MAX_PROMPTS})]
IdLists = Annotated[Listed[Ids], Field(json_schema_extra={"minItems": 1, "maxItems": MAX_PROMPTS})]


class CompletionRequest(AnswerRequest):
    prompt: Annotated[
        Text | Ids | Texts | IdLists,
        one_of("a text, a list of token ids, a list of texts, or a list of lists of token ids"),
    ] = Field(description="Each of several prompts gets a choice, in their order.")
    max_tokens: Int32 | None = Field(
        None,
        description=f"{DEFAULT_MAX_TOKENS} unless given, or as many as fit.",
        json_schema_extra={"minimum": 1},
    )
    echo: Annotated[bool | None, Only((None, False), "the prompt in the answer")] = None
    logprobs: Annotated[int | None, Only((None,), "log probabilities of tokens")] = None
    best_of: Annotated[int | None, Only((None, 1), "several choices for one prompt")] = None
    suffix: Annotated[str | None, Only((None, ""), "an answer that leads up to a text")] = None

    def prompts(self) -> list[Prompt]:
        """Errors: InvalidArgument for more than MAX_PROMPTS."""
        several = isinstance(self.prompt, list) and any(
            isinstance(part, str | list) for part in self.prompt[:1]
        )
        prompts = cast("list[Prompt]", self.prompt if several else [self.prompt])
        if len(prompts) > MAX_PROMPTS:
            raise InvalidArgument(
                Reason.INVALID_FIELD,
                f"prompt has {len(prompts)} prompts; at most {MAX_PROMPTS} are allowed",
                field="prompt",
            )
        return prompts
