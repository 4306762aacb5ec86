"""What a prompt and a chat become, from a model directory written here."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gateway.tokenizer import ChatMessage, Tokenizer
from servicekit.errors import InvalidArgument, Reason, SetupError
from tests.gateway.tiny_tokenizers import (
    add_bos_by_itself,
    byte_fallback_backend,
    byte_level_backend,
    save_model_dir,
)

ROOT = Path(__file__).parents[2]
TURNS = "{% for m in messages %}{{ m['role'] + ':' + m['content'] + ' ' }}{% endfor %}"
WITH_BOS = "{{ bos_token }}" + TURNS + "{% if add_generation_prompt %}assistant:{% endif %}"


def with_bos(model_dir: Path, chat_template: str | None = None) -> Tokenizer:
    """A tokenizer that adds a BOS by itself."""
    backend = add_bos_by_itself(byte_fallback_backend())
    return Tokenizer.load(save_model_dir(model_dir, backend, chat_template=chat_template))


def num_bos(tokenizer: Tokenizer, ids: list[int]) -> int:
    assert tokenizer.bos_token_id is not None
    return ids.count(tokenizer.bos_token_id)


def test_case_7_5_a_raw_prompt_gets_one_bos(tmp_path: Path) -> None:
    """Raw completion 'Hi' (case 7.5)."""
    tokenizer = with_bos(tmp_path)
    ids = tokenizer.encode("Hi")
    assert (ids[0], num_bos(tokenizer, ids)) == (tokenizer.bos_token_id, 1)
    assert len(ids) > 1


def test_case_7_5_a_raw_prompt_that_starts_with_the_bos_string_gets_no_second(
    tmp_path: Path,
) -> None:
    """Raw completion whose text itself starts with the BOS string (case 7.5)."""
    tokenizer = with_bos(tmp_path)
    ids = tokenizer.encode("<s>Hi")
    assert (ids[0], num_bos(tokenizer, ids)) == (tokenizer.bos_token_id, 1)
    assert tokenizer.encode("<s>")[0] == tokenizer.bos_token_id
    assert len(tokenizer.encode("<s>")) == 1


def test_case_7_5_a_chat_whose_template_writes_bos_gets_one(tmp_path: Path) -> None:
    """The tokenizer would add one, the template writes one (case 7.5)."""
    tokenizer = with_bos(tmp_path, WITH_BOS)
    ids = tokenizer.encode_chat([ChatMessage("user", "Hello")])
    assert (ids[0], num_bos(tokenizer, ids)) == (tokenizer.bos_token_id, 1)


def test_case_7_5_a_chat_whose_template_writes_no_bos_gets_none(tmp_path: Path) -> None:
    """The template's own choice stands (case 7.5)."""
    tokenizer = with_bos(tmp_path, TURNS)
    assert num_bos(tokenizer, tokenizer.encode_chat([ChatMessage("user", "Hello")])) == 0


def test_special_tokens_are_added_or_not_as_asked(tmp_path: Path) -> None:
    tokenizer = with_bos(tmp_path, WITH_BOS)
    bare = tokenizer.encode("Hi", add_special_tokens=False)
    assert tokenizer.encode("Hi") == [tokenizer.bos_token_id, *bare]
    doubled = tokenizer.encode("<s><s>Hi", add_special_tokens=False)
    assert num_bos(tokenizer, doubled) == 2, "nothing was added, so nothing is taken away"
    for asked in (False, True):
        ids = tokenizer.encode_chat([("user", "Hi")], add_special_tokens=asked)
        assert num_bos(tokenizer, ids) == 1


def test_a_tokenizer_that_adds_no_bos_is_left_as_it_is(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save_model_dir(tmp_path, byte_level_backend()))
    assert num_bos(tokenizer, tokenizer.encode("Hi")) == 0
    assert num_bos(tokenizer, tokenizer.encode("<s>Hi")) == 1
    assert num_bos(tokenizer, tokenizer.encode("<s><s>Hi")) == 2


def test_a_chat_is_rendered_up_to_the_start_of_the_answer(tmp_path: Path) -> None:
    backend = byte_level_backend()
    tokenizer = Tokenizer.load(save_model_dir(tmp_path, backend, chat_template=WITH_BOS))
    messages = [("system", "Be brief."), ("user", "안녕")]
    assert tokenizer.render_chat(messages) == "<s>system:Be brief. user:안녕 assistant:"
    ids = tokenizer.encode_chat(messages)
    assert tokenizer.decode(ids, skip_special_tokens=False) == tokenizer.render_chat(messages)


@pytest.mark.parametrize(
    ("chat_template", "words"),
    [
        (None, "has no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", "Expected"),
        ("{{ messages[7].content.strip() }}", "no element 7"),
        ("{{ messages[0]['content'] + 1 }}", "str"),
    ],
)
def test_a_template_that_is_missing_or_fails_is_the_requests_error_with_its_words(
    tmp_path: Path, chat_template: str | None, words: str
) -> None:
    model_dir = save_model_dir(tmp_path, byte_level_backend(), chat_template=chat_template)
    tokenizer = Tokenizer.load(model_dir)
    with pytest.raises(InvalidArgument, match=words) as caught:
        tokenizer.encode_chat([("user", "Hello")])
    assert caught.value.reason is Reason.CHAT_TEMPLATE


def test_a_chat_without_messages_is_refused(tmp_path: Path) -> None:
    model_dir = save_model_dir(tmp_path, byte_level_backend(), chat_template=WITH_BOS)
    with pytest.raises(InvalidArgument) as caught:
        Tokenizer.load(model_dir).encode_chat([])
    assert caught.value.reason is Reason.EMPTY_PROMPT


WITH_TOOLS = "{% for t in tools or [] %}<{{ t['name'] }}>{% endfor %}" + TURNS


def test_tools_and_further_members_of_messages_are_the_templates_to_use(tmp_path: Path) -> None:
    template = WITH_TOOLS + "{{ messages[-1]['tool_calls'][0] }}"
    model_dir = save_model_dir(tmp_path, byte_level_backend(), chat_template=template)
    tokenizer = Tokenizer.load(model_dir)
    messages = [("user", "Hi"), ChatMessage("assistant", "", {"tool_calls": ["call"]})]
    assert tokenizer.render_chat(messages, tools=[{"name": "f"}]) == "<f>user:Hi assistant: call"
    assert tokenizer.render_chat(messages) == "user:Hi assistant: call"


def test_tools_that_the_template_would_leave_out_are_refused(tmp_path: Path) -> None:
    model_dir = save_model_dir(tmp_path, byte_level_backend(), chat_template=TURNS)
    tokenizer = Tokenizer.load(model_dir)
    with pytest.raises(InvalidArgument, match="has no place for tools") as caught:
        tokenizer.encode_chat([("user", "Hi")], tools=[{"name": "f"}])
    assert (caught.value.reason, caught.value.metadata["field"]) == (Reason.CHAT_TEMPLATE, "tools")


def test_a_template_that_cannot_do_without_tools_gets_them(tmp_path: Path) -> None:
    """It was asked to, to see whether it has a place for them, and its failure was the answer."""
    template = "{% for t in tools %}<{{ t['name'] }}>{% endfor %}" + TURNS
    model_dir = save_model_dir(tmp_path, byte_level_backend(), chat_template=template)
    tokenizer = Tokenizer.load(model_dir)
    assert tokenizer.render_chat([("user", "Hi")], tools=[{"name": "f"}]) == "<f>user:Hi "


A, B, C = 300, 301, 1  # C is </s>


@pytest.mark.parametrize("in_tokenizer", [True, False])
@pytest.mark.parametrize(
    ("config", "generation_config", "ids"),
    [
        ({"eos_token_id": A}, {"eos_token_id": [A, B]}, {A, B}),
        ({"eos_token_id": A}, {"eos_token_id": B}, {A, B}),
        ({"eos_token_id": [A, B]}, None, {A, B}),
        ({"eos_token_id": A}, {"eos_token_id": None}, {A}),
        ({"eos_token_id": None}, {}, set()),
        ({}, {"eos_token_id": [B]}, {B}),
        ({}, None, set()),
    ],
)
def test_case_9_8_each_source_of_end_tokens_counts(
    tmp_path: Path,
    config: dict[str, Any],
    generation_config: dict[str, Any] | None,
    ids: set[int],
    in_tokenizer: bool,
) -> None:
    """An int, a list, null, absent, no file; in any of the three places (case 9.8)."""
    tokenizer = Tokenizer.load(
        save_model_dir(
            tmp_path,
            byte_level_backend(),
            config=config,
            generation_config=generation_config,
            eos_token="</s>" if in_tokenizer else None,
        )
    )
    assert tokenizer.end_token_ids == ids | ({C} if in_tokenizer else set())


@pytest.mark.parametrize("eos", ["2", -1, True, [1, "2"], 1.5, {}])
def test_an_end_token_that_is_no_id_is_refused_by_file(tmp_path: Path, eos: object) -> None:
    save_model_dir(tmp_path, byte_level_backend(), generation_config={"eos_token_id": eos})
    with pytest.raises(SetupError, match=r"eos_token_id in .*generation_config.json"):
        Tokenizer.load(tmp_path)


def test_what_a_service_asks_of_the_model(tmp_path: Path) -> None:
    model_dir = save_model_dir(tmp_path / "tiny-model", byte_level_backend())
    tokenizer = Tokenizer.load(model_dir)
    assert tokenizer.model_name == "tiny-model"
    assert tokenizer.vocab_size == 1000
    assert tokenizer.special_ids == {0, 1, 2}


@pytest.mark.parametrize("missing", ["tokenizer.json", "config.json"])
def test_case_9_6_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    """Tokenizer file missing (case 9.6)."""
    save_model_dir(tmp_path, byte_level_backend())
    (tmp_path / missing).unlink()
    with pytest.raises(SetupError, match=missing):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "{}", '{"version": "1.0"}'])
def test_a_broken_tokenizer_file_is_a_setup_error(tmp_path: Path, content: str) -> None:
    save_model_dir(tmp_path, byte_level_backend())
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(SetupError, match="cannot be loaded"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("vocab_size", [None, 0, "many", -3])
def test_a_model_without_a_usable_vocab_size_is_refused(tmp_path: Path, vocab_size: object) -> None:
    save_model_dir(tmp_path, byte_level_backend(), config={"vocab_size": vocab_size})
    with pytest.raises(SetupError, match="vocab_size"):
        Tokenizer.load(tmp_path)


def test_truncation_and_padding_left_in_the_tokenizer_file_do_not_apply(tmp_path: Path) -> None:
    backend = byte_level_backend()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    tokenizer = Tokenizer.load(save_model_dir(tmp_path, backend))
    assert tokenizer.decode(tokenizer.encode("0123456789")) == "0123456789"


def test_code_in_the_directory_is_not_run(tmp_path: Path) -> None:
    save_model_dir(tmp_path, byte_level_backend())
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config |= {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.load(tmp_path).encode("Hi")
    assert not (tmp_path / "ran").exists()


def test_a_gateway_process_loads_no_torch_even_where_it_is_installed(tmp_path: Path) -> None:
    save_model_dir(tmp_path, byte_level_backend(), chat_template=WITH_BOS)
    program = f"""
import sys
from pathlib import Path
from gateway.without_torch import keep_torch_out
keep_torch_out()
from gateway.tokenizer import Tokenizer
print(Tokenizer.load(Path({str(tmp_path)!r})).render_chat([("user", "Hi")]), sys.modules["torch"])
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (run.stdout, run.stderr) == ("<s>user:Hi assistant: None\n", "")


def test_threads_share_a_tokenizer(tmp_path: Path) -> None:
    tokenizer = with_bos(tmp_path, WITH_BOS)
    texts = ["Hello world " * count for count in range(40)]
    alone = [(tokenizer.encode(text), tokenizer.encode_chat([("user", text)])) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        raw = list(pool.map(tokenizer.encode, texts))
        chats = list(pool.map(lambda text: tokenizer.encode_chat([("user", text)]), texts))
    assert list(zip(raw, chats, strict=True)) == alone
