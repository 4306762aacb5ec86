"""What the OpenAI routes answer, whole and in chunks."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

LEAST_LOGPROB = -9999.0  # JSON has no infinity; OpenAI's figure
FinishReason = Literal["stop", "length"]


class CachedTokens(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    """In tokens, of all choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class AnsweredMessage(BaseModel):
    role: Literal["assistant"]
    content: str


class LikelyToken(BaseModel):
    token: str
    logprob: float  # natural; at least LEAST_LOGPROB
    bytes: list[int]  # of the text in UTF-8, or of the part of a character that it is


class AnsweredToken(LikelyToken):
    top_logprobs: list[LikelyToken]  # best first


class ChatLogprobs(BaseModel):
    """One for each token, an end token among them."""

    content: list[AnsweredToken]
    refusal: None


class ChatChoice(BaseModel):
    index: int
    message: AnsweredMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(BaseModel):
    """The role in the first chunk of a choice, then text, then nothing."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None  # of the tokens that end in this chunk
    finish_reason: FinishReason | None


class ChatCompletionChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None  # given when it was asked for: null but in the last chunk


class CompletionLogprobs(BaseModel):
    """Four lists, an entry for each token: that ends in this chunk, where it is one."""

    tokens: list[str]
    token_logprobs: list[float]  # natural; at least LEAST_LOGPROB
    top_logprobs: list[dict[str, float]]  # of the likeliest, best first, and of the token itself
    text_offset: list[int]  # in characters, from the start of the choice's text


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None  # null in chunks before the last


class Completion(BaseModel):
    """Whole, or a chunk."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None  # null before a runner was seen


class Models(BaseModel):
    object: Literal["list"]
    data: list[Model]  # glossary: OpenAI's name
