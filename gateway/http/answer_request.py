"""What /v1/chat/completions and /v1/completions have in common: how to sample, where to stop."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from gateway.bounds import MAX_CHOICES, MAX_STOPS
from gateway.generation import GenerationRequest
from gateway.http.fields import ABOVE_ZERO, Asked, Int32, Int64, Listed, Only, one_of, within
from gateway.stop_strings import MAX_STOP_CHARS
from servicekit.sampling import (
    MAX_BIAS,
    MAX_BIASES,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_TEMPERATURE,
    Sampling,
)


def _check_biases(biases: Any) -> Any:
    """Before each of them is looked at."""
    if isinstance(biases, dict) and len(biases) > MAX_BIASES:
        raise PydanticCustomError(
            "too_many", "Input should have at most {most}", {"most": MAX_BIASES}
        )
    return biases


TokenId = Annotated[Int32, Field(json_schema_extra={"minimum": 0})]
TokenIdText = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
StopText = Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": MAX_STOP_CHARS})]
StopTexts = Annotated[Listed[StopText], Field(json_schema_extra={"maxItems": MAX_STOPS})]
StopIds = Annotated[Listed[TokenId], Field(json_schema_extra={"maxItems": MAX_STOPS})]
Bias = Annotated[float, Field(json_schema_extra=within(-MAX_BIAS, MAX_BIAS))]
Biases = Annotated[
    dict[TokenIdText, Bias],
    BeforeValidator(_check_biases),
    Field(json_schema_extra={"maxProperties": MAX_BIASES, "additionalProperties": False}),
]
ONLY_STREAMED: dict[str, Any] = {
    "anyOf": [
        {"properties": {"stream_options": {"type": "null"}}},
        {"properties": {"stream": {"const": True}}, "required": ["stream"]},
    ]
}
SAMPLED = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


class StreamOptions(Asked):
    include_usage: bool | None = Field(
        None, description="One more chunk before the end, with the usage and no choice."
    )


class AnswerRequest(Asked):
    """A field that is null counts as one that is not given."""

    model_config = ConfigDict(json_schema_extra=ONLY_STREAMED)

    model: str = Field(min_length=1, description="The served model's name.")
    stream: bool | None = Field(None, description="Server-sent events, a chunk each.")
    stream_options: StreamOptions | None = Field(None, description="Only beside stream.")

    temperature: float | None = Field(
        None, description="1 unless given.", json_schema_extra=within(0, MAX_TEMPERATURE)
    )
    top_k: Int32 | None = Field(
        None,
        description="0 and -1 switch it off; 0 unless given.",
        json_schema_extra={"minimum": -1},
    )
    top_p: float | None = Field(
        None,
        description="1, which is off, unless given.",
        json_schema_extra=within(ABOVE_ZERO, 1),
    )
    min_p: float | None = Field(
        None, description="0, which is off, unless given.", json_schema_extra=within(0, 1)
    )
    seed: Int64 | None = Field(None, description="Drawn by the server unless given.")
    repetition_penalty: float | None = Field(
        None,
        description="1, which is off, unless given.",
        json_schema_extra=within(ABOVE_ZERO, MAX_REPETITION_PENALTY),
    )
    presence_penalty: float | None = Field(
        None,
        description="0, which is off, unless given.",
        json_schema_extra=within(-MAX_PENALTY, MAX_PENALTY),
    )
    frequency_penalty: float | None = Field(
        None,
        description="0, which is off, unless given.",
        json_schema_extra=within(-MAX_PENALTY, MAX_PENALTY),
    )
    logit_bias: Biases | None = Field(
        None, description="A bias for each token id; none unless given."
    )

    max_tokens: Int32 | None = Field(
        None,
        description="As many as fit unless given.",
        json_schema_extra={"minimum": 1},
    )
    min_tokens: Int32 | None = Field(
        None,
        description="Nothing ends the answer before; a stop begins after so many. 0 unless given.",
        json_schema_extra={"minimum": 0},
    )
    stop: Annotated[StopText | StopTexts | None, one_of("a text or a list of texts")] = Field(
        None, description="Texts that end the answer; none unless given."
    )
    stop_token_ids: StopIds | None = Field(
        None, description="Tokens that end the answer; none unless given."
    )
    ignore_eos: bool | None = Field(
        None, description="End tokens do not end the answer; false unless given."
    )
    include_stop_str_in_output: bool | None = Field(
        None, description="What stopped the answer is part of it; false unless given."
    )

    priority: Int32 | None = Field(
        None,
        description="Higher ones come first; 0 unless given.",
        json_schema_extra=within(-100, 100),
    )
    cache_salt: str | None = Field(
        None,
        description="Only requests with the same salt share pages; at most 256 bytes; none "
        "unless given.",
    )
    user: str | None = Field(None, description="For your own books; nothing is done with it.")
    n: int | None = Field(
        None,
        description="Choices for each prompt; they differ unless temperature is 0. 1 unless given.",
        ge=1,
        le=MAX_CHOICES,
    )
    prompt_logprobs: Annotated[
        int | None, Only((None,), "log probabilities of a prompt, which may be cached")
    ] = None

    @field_validator("stream_options")
    @classmethod
    def _check_stream_options(
        cls, options: StreamOptions | None, fields: ValidationInfo
    ) -> StreamOptions | None:
        if options is not None and not fields.data.get("stream"):
            raise PydanticCustomError("not_streamed", "Input should be left out without stream")
        return options

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def num_choices(self) -> int:
        """Of each prompt."""
        return self.n or 1

    @property
    def num_logprobs(self) -> int | None:
        """Of so many likeliest tokens beside each of the answer; None: of none at all."""
        return None

    def generation_request(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        max_tokens: int | None,
        traceparent: str,
    ) -> GenerationRequest:
        """Errors: InvalidArgument for sampling parameters out of range."""
        return GenerationRequest(
            request_id=request_id,
            prompt_ids=prompt_ids,
            sampling=self._sampling(),
            max_tokens=max_tokens,
            stop_strings=[self.stop] if isinstance(self.stop, str) else self.stop or (),
            stop_token_ids=self.stop_token_ids or (),
            ignore_eos=bool(self.ignore_eos),
            min_tokens=self.min_tokens or 0,
            include_stop=bool(self.include_stop_str_in_output),
            traceparent=traceparent,
            priority=self.priority or 0,
            cache_salt=self.cache_salt or "",
            num_choices=self.num_choices,
        )

    def _sampling(self) -> Sampling:
        given: dict[str, Any] = {"seed": secrets.randbits(63)}
        given |= {name: value for name in SAMPLED if (value := getattr(self, name)) is not None}
        biases = tuple((int(token_id), bias) for token_id, bias in (self.logit_bias or {}).items())
        return Sampling(**given, logit_bias=biases, logprobs=self.num_logprobs)
