"""Case 7.6, huggingface/text-generation-inference #1545: a template in an unusual place or with
unusual words was no template, and one that raised was a failure of the server.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.tokenizer import Tokenizer
from tests.gateway.fake_cache import FakeCache
from tests.gateway.http.conftest import surface_over
from tests.gateway.http.surface import CHAT, error_of
from tests.gateway.tiny_tokenizers import BACKENDS, save_model_dir

TURNS = "{% for m in messages %}{{ m['role'] + ':' + m['content'] + ' ' }}{% endfor %}"
ALTERNATING = (
    "{% for m in messages %}{% if loop.index0 % 2 != (m['role'] == 'assistant') | int %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}{% endfor %}" + TURNS
)
USER = {"role": "user", "content": "Hi"}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    ],
}
TOOL = {"type": "function", "function": {"name": "weather"}}
BOS_OBJECT = {
    "__type": "AddedToken",
    "content": "<s>",
    "lstrip": False,
    "normalized": False,
    "rstrip": False,
}
NAMED = [
    {"name": "default", "template": "plain " + TURNS},
    {"name": "tool_use", "template": "{{ tools[0]['function']['name'] }} " + TURNS},
]


def model_dir_with(
    model_dir: Path, settings: Mapping[str, Any], file_text: str | None = None
) -> Path:
    """A model whose tokenizer_config.json has `settings`, and whose template file `file_text`."""
    shutil.rmtree(model_dir, ignore_errors=True)
    save_model_dir(model_dir, BACKENDS["byte_level"]())
    path = model_dir / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    if file_text is not None:
        (model_dir / "chat_template.jinja").write_text(file_text)
    return model_dir


@pytest.mark.parametrize(
    ("settings", "asked", "rendered"),
    [
        (
            {"bos_token": BOS_OBJECT, "chat_template": "{{ bos_token }}" + TURNS},
            {},
            "<s>user:Hi ",
        ),
        (
            {"chat_template": "{{ messages[0]['content'].strip().upper() }}"},
            {"messages": [{"role": "user", "content": "  hi \n"}]},
            "HI",
        ),
        ({"chat_template": NAMED}, {}, "plain user:Hi "),
        ({"chat_template": NAMED}, {"tools": [TOOL]}, "weather user:Hi "),
        (
            {
                "chat_template": "{% for t in tools %}{{ t['function']['name'] }} {% endfor %}"
                + TURNS
            },
            {"tools": [TOOL]},
            "weather user:Hi ",
        ),
        (
            {"chat_template": ALTERNATING},
            {"messages": [USER, {"role": "assistant", "content": "so"}, USER]},
            "user:Hi assistant:so user:Hi ",
        ),
        (
            {"chat_template": TURNS},
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "Hel"},
                            {"type": "text", "text": "lo"},
                        ],
                    }
                ]
            },
            "user:Hello ",
        ),
        (
            {
                "chat_template": TURNS
                + "{{ messages[1]['tool_calls'][0]['function']['arguments'] }}"
            },
            {"messages": [USER, CALLED]},
            "user:Hi assistant: {'x': 1}",
        ),
    ],
    ids=[
        "a bos_token that is an object",
        "methods of texts",
        "named templates, without tools",
        "named templates, with tools",
        "tools",
        "turns as the template wants them",
        "content in parts",
        "no content beside tool_calls",
    ],
)
async def test_case_7_6_what_a_template_may_be_is_rendered_as_transformers_does(
    tmp_path: Path, settings: dict[str, Any], asked: dict[str, Any], rendered: str
) -> None:
    tokenizer = Tokenizer.load(model_dir_with(tmp_path / "model", settings))
    async with surface_over(FakeCache(), tokenizer, tmp_path / "c") as surface:
        response = await surface.http.post("/tokenize", json={"messages": [USER]} | asked)
    assert response.status_code == 200
    ids = response.json()["tokens"]
    assert tokenizer.decode(ids, skip_special_tokens=False) == rendered


async def test_case_7_6_a_template_may_lie_in_a_file_of_its_own(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(model_dir_with(tmp_path / "model", {}, "in a file: " + TURNS))
    assert tokenizer.render_chat([("user", "Hi")]) == "in a file: user:Hi "


async def test_case_7_6_a_template_may_ask_for_the_date(tmp_path: Path) -> None:
    settings = {"chat_template": "{{ strftime_now('%Y') }}"}
    tokenizer = Tokenizer.load(model_dir_with(tmp_path / "model", settings))
    years = [datetime.now(UTC).year + around for around in (-1, 0, 1)]  # the clock's zone is ours
    assert int(tokenizer.render_chat([("user", "Hi")])) in years


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (None, [USER], "has no chat template"),
        (ALTERNATING, [USER, USER], "roles must alternate user/assistant"),
        ("{{ messages[0]['content'] + 1 }}", [USER], "refused the messages"),
        ("{% for %}", [USER], "refused the messages"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", [USER], "refused the messages"),
    ],
    ids=["none", "two user turns in a row", "a wrong type", "a broken one", "one that breaks out"],
)
async def test_case_7_6_what_a_template_refuses_is_the_clients_with_its_words(
    tmp_path: Path, template: str | None, messages: list[Any], words: str
) -> None:
    settings = {} if template is None else {"chat_template": template}
    tokenizer = Tokenizer.load(model_dir_with(tmp_path / "model", settings))
    async with surface_over(FakeCache(), tokenizer, tmp_path / "c") as surface:
        for path in (CHAT, "/tokenize"):
            body = {"messages": messages} | ({"model": "tiny"} if path == CHAT else {})
            response = await surface.http.post(path, json=body)
            error = error_of(response)
            assert (response.status_code, error["code"]) == (400, "chat_template")
            assert words in error["message"]
        assert surface.cache.commands.empty()
