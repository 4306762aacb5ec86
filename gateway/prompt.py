"""A prompt, raw or a conversation, as the ids that the model gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway import off_loop
from gateway.tokenizer import ChatMessage, Tokenizer
from servicekit.errors import InvalidArgument, Reason


async def prompt_ids_of(
    tokenizer: Tokenizer,
    prompt: str | Sequence[ChatMessage],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    add_special_tokens: bool | None = None,
) -> list[int]:
    """`add_special_tokens` unless it is said: true for a text, false for a conversation, whose
    template writes them.

    Errors: InvalidArgument EMPTY_PROMPT; those of `Tokenizer.encode_chat`.
    """
    if not isinstance(prompt, str):
        return await off_loop.encode_chat(
            tokenizer, prompt, tools=tools, add_special_tokens=bool(add_special_tokens)
        )
    if not prompt:
        raise InvalidArgument(
            Reason.EMPTY_PROMPT, "the prompt is empty: send a text or a chat", field="prompt"
        )
    return await off_loop.encode(
        tokenizer, prompt, add_special_tokens=add_special_tokens is not False
    )
