"""Texts to ids and back, the long ones on a thread, so that other streams go on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gateway.bounds import check_detokenized
from gateway.pieces import Pieces
from gateway.text_stream import Resumed, TextStream
from gateway.tokenizer import ChatMessage, Tokenizer

LONG_TEXT_CHARS = 8_192
MESSAGE_CHARS = 32  # what rendering a message costs beside its own characters, in such
LONG_IDS = 2_048
BURST_IDS = 256  # of which pieces are made at once: a few milliseconds


async def encode(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = True) -> list[int]:
    """`Tokenizer.encode`."""
    call = partial(tokenizer.encode, text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(call) if len(text) > LONG_TEXT_CHARS else call()


async def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[ChatMessage],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    add_special_tokens: bool = False,
) -> list[int]:
    """`Tokenizer.encode_chat`; the same errors."""
    call = partial(
        tokenizer.encode_chat, messages, tools=tools, add_special_tokens=add_special_tokens
    )
    chars = sum(MESSAGE_CHARS + len(message.role) + len(message.content) for message in messages)
    unbounded = bool(tools) or any(message.more for message in messages)
    return await asyncio.to_thread(call) if unbounded or chars > LONG_TEXT_CHARS else call()


async def decode(
    tokenizer: Tokenizer, token_ids: Sequence[int], *, skip_special_tokens: bool
) -> str:
    """`Tokenizer.decode`."""
    call = partial(tokenizer.decode, token_ids, skip_special_tokens=skip_special_tokens)
    return await asyncio.to_thread(call) if len(token_ids) > LONG_IDS else call()


async def detokenize(
    tokenizer: Tokenizer, name: str, token_ids: Sequence[int], *, skip_special_tokens: bool
) -> str:
    """`Tokenizer.decode` of ids that came as the field `name`. Errors: those of
    `check_detokenized`.
    """

    def call() -> str:
        check_detokenized(name, token_ids, tokenizer.vocab_size)
        return tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    return await asyncio.to_thread(call) if len(token_ids) > LONG_IDS else call()


async def resume(text: TextStream, token_ids: Sequence[int]) -> Resumed:
    """`TextStream.resume`."""
    call = partial(text.resume, token_ids)
    return await asyncio.to_thread(call) if len(token_ids) > LONG_IDS else call()


async def pieces_of(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    """`Pieces` of all the ids. Whoever leaves early stops the work."""
    pieces = Pieces(tokenizer)
    for start in range(0, len(token_ids), BURST_IDS):
        await asyncio.to_thread(pieces.push, token_ids[start : start + BURST_IDS])
    return await asyncio.to_thread(pieces.finish)
