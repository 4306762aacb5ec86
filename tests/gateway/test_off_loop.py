"""Where texts are tokenized: short ones at once, long ones beside the loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from gateway import off_loop
from gateway.tokenizer import ChatMessage


class Noting:
    """A tokenizer of one id a character that notes which thread called it."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.vocab_size = 1_000

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.threads.append(threading.current_thread())
        return [ord(char) for char in text]

    def encode_chat(self, messages: list[ChatMessage], **asked: object) -> list[int]:
        text = "".join(message.content for message in messages)
        return self.encode(text, add_special_tokens=False)

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        self.threads.append(threading.current_thread())
        return "".join(map(chr, token_ids))


def encode(tokenizer: Any, text: str) -> Any:
    return off_loop.encode(tokenizer, text)


def encode_chat(tokenizer: Any, text: str) -> Any:
    halves = [text[: len(text) // 2], text[len(text) // 2 :]]
    return off_loop.encode_chat(tokenizer, [ChatMessage("", half) for half in halves])


def detokenize(tokenizer: Any, text: str) -> Any:
    return off_loop.detokenize(tokenizer, "ids", list(map(ord, text)), skip_special_tokens=False)


def decode(tokenizer: Any, text: str) -> Any:
    return off_loop.decode(tokenizer, list(map(ord, text)), skip_special_tokens=False)


@pytest.mark.parametrize(
    ("call", "most"),
    [
        (encode, off_loop.LONG_TEXT_CHARS),
        (encode_chat, off_loop.LONG_TEXT_CHARS - 2 * off_loop.MESSAGE_CHARS),
        (decode, off_loop.LONG_IDS),
        (detokenize, off_loop.LONG_IDS),
    ],
)
async def test_only_what_is_long_leaves_the_loop(call: Any, most: int) -> None:
    tokenizer = Noting()
    short, long = await asyncio.gather(
        call(tokenizer, "x" * most), call(tokenizer, "x" * (most + 1))
    )
    assert (len(short), len(long)) == (most, most + 1)
    here = threading.current_thread()
    assert [thread is here for thread in tokenizer.threads] == [True, False]


async def test_messages_without_a_character_leave_the_loop_when_they_are_many() -> None:
    """Each costs the template as much as some text; 400,000 of them held every stream for 7 s."""
    tokenizer: Any = Noting()
    most = off_loop.LONG_TEXT_CHARS // off_loop.MESSAGE_CHARS
    for count in (most, most + 1):
        await off_loop.encode_chat(tokenizer, [ChatMessage("", "")] * count)
    here = threading.current_thread()
    assert [thread is here for thread in tokenizer.threads] == [True, False]


@pytest.mark.parametrize(
    ("message", "tools"),
    [
        (ChatMessage("r" * (off_loop.LONG_TEXT_CHARS + 1), ""), ()),
        (ChatMessage("user", "", {"name": "x"}), ()),
        (ChatMessage("user", ""), [{"type": "function"}]),
    ],
)
async def test_what_a_template_makes_long_leaves_the_loop_too(
    message: ChatMessage, tools: list[dict[str, Any]]
) -> None:
    tokenizer: Any = Noting()
    await off_loop.encode_chat(tokenizer, [message], tools=tools)
    assert tokenizer.threads != [threading.main_thread()]
