"""/tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from gateway import off_loop
from tests.gateway.http.surface import Surface, error_of


async def test_a_prompt_becomes_the_ids_that_a_completion_would_use(surface: Surface) -> None:
    answer = (await surface.post("/tokenize", prompt="안녕 <s>")).json()
    ids = surface.tokenizer.encode("안녕 <s>")
    assert answer == {"tokens": ids, "count": len(ids), "token_strs": None, "max_model_len": 64}


async def test_a_conversation_becomes_the_ids_that_its_answer_would_use(surface: Surface) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    answer = (await surface.post("/tokenize", prompt=None, messages=messages)).json()
    assert answer["tokens"] == surface.tokenizer.encode_chat([("user", "Hi")])


async def test_the_text_of_each_id_joined_is_the_text(surface: Surface) -> None:
    answer = (await surface.post("/tokenize", prompt="안녕 go", return_token_strs=True)).json()
    assert len(answer["token_strs"]) == answer["count"]
    assert "".join(answer["token_strs"]) == "안녕 go"


class Counting(ThreadPoolExecutor):
    """Threads that count what they are given."""

    calls = 0

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls += 1
        return super().submit(call, *args, **kwargs)


@pytest.mark.parametrize(
    ("path", "fields", "calls"),
    [
        ("/tokenize", {"return_token_strs": True}, -(-4_096 // off_loop.BURST_IDS) + 2),
        ("/tokenize", {}, 1),
        ("/detokenize", {}, 1),
    ],
)
async def test_long_lists_are_joined_checked_and_written_beside_the_loop(
    surface: Surface, path: str, fields: dict[str, object], calls: int
) -> None:
    """The last step of 200,000 texts and the JSON of their answer held every stream for 0.57 s, the
    check of 262,144 ids and their text for 0.29 s.
    """
    counting = Counting()
    asyncio.get_running_loop().set_default_executor(counting)
    asked = {"prompt": "q" * 4_096} if path == "/tokenize" else {"tokens": [5] * 4_096}
    answer = await surface.post(path, **asked, **fields)
    assert answer.status_code == 200
    assert answer.json().get("count", 4_096) == 4_096
    assert counting.calls == calls


async def test_ids_become_their_text_with_special_tokens_shown(surface: Surface) -> None:
    ids = surface.tokenizer.encode("<s>Hi 안녕")
    answer = (await surface.post("/detokenize", tokens=ids)).json()
    assert answer == {"prompt": "<s>Hi 안녕"}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {"prompt": ""}, "prompt"),
        ("/tokenize", {"prompt": None}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]}, "prompt"),
        ("/tokenize", {"prompt": None, "messages": []}, "messages"),
        ("/tokenize", {"prompts": "x"}, "prompts"),
        ("/detokenize", {"tokens": []}, "tokens"),
        ("/detokenize", {"tokens": [1000]}, "tokens"),
        ("/detokenize", {"tokens": [2**40]}, "tokens[0]"),
        ("/detokenize", {"tokens": "Hi"}, "tokens"),
    ],
)
async def test_what_has_no_ids_or_no_text_is_refused_by_name(
    surface: Surface, path: str, fields: dict, param: str
) -> None:
    response = await surface.post(path, **fields)
    assert (response.status_code, error_of(response)["param"]) == (400, param)
