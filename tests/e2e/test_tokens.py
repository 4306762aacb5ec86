"""Tokenize and Detokenize agree with transformers' own tokenizer, and with what Generate uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from pagewire.v1 import inference_pb2 as pb
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.e2e.system import System
from tests.gateway.tiny_tokenizers import CHINESE, EMOJI, ENGLISH, KOREAN, THAI

TEXTS = [ENGLISH, KOREAN, THAI, EMOJI, CHINESE, "  two  spaces\n\n\ttab ", "don't , you know ."]
TURNS = [("system", "Be brief."), ("user", "안녕"), ("assistant", "Hi!"), ("user", "2 + 2?")]


class Served:
    def __init__(self, system: System) -> None:
        self.system = system
        self.theirs: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(system.model_dir)

    async def tokenized(self, **fields: object) -> pb.TokenizeResponse:
        async with self.system.client() as stub:
            return await stub.Tokenize(pb.TokenizeRequest(**fields))

    async def detokenized(self, token_ids: list[int], **fields: object) -> str:
        async with self.system.client() as stub:
            request = pb.DetokenizeRequest(token_ids=token_ids, **fields)
            return (await stub.Detokenize(request)).text


@pytest.fixture(scope="module", params=["tiny", "smollm2"])
def served(request: pytest.FixtureRequest) -> Served:
    return Served(request.getfixturevalue(request.param))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("add_special_tokens", [True, False])
async def test_a_text_goes_to_the_ids_of_transformers_and_back(
    text: str, add_special_tokens: bool, served: Served
) -> None:
    ours = await served.tokenized(
        text=text, add_special_tokens=add_special_tokens, with_pieces=True
    )
    theirs = served.theirs(text, add_special_tokens=add_special_tokens).input_ids
    assert list(ours.token_ids) == theirs
    assert await served.detokenized(theirs) == served.theirs.decode(theirs)
    assert "".join(ours.pieces) == served.theirs.decode(theirs)
    assert await served.detokenized(theirs, skip_special_tokens=True) == text


async def test_a_chat_goes_to_the_ids_that_transformers_makes_of_it(served: Served) -> None:
    messages = [pb.ChatMessage(role=role, content=content) for role, content in TURNS]
    ours = await served.tokenized(chat=pb.ChatMessages(messages=messages))
    turns = [{"role": role, "content": content} for role, content in TURNS]
    theirs = served.theirs.apply_chat_template(
        turns, add_generation_prompt=True, return_dict=True
    ).input_ids
    assert list(ours.token_ids) == theirs


async def test_special_tokens_are_shown_or_skipped_as_transformers_does(served: Served) -> None:
    ids = [served.theirs.bos_token_id, *served.theirs("one").input_ids, served.theirs.eos_token_id]
    for skip in (False, True):
        text = served.theirs.decode(ids, skip_special_tokens=skip)
        assert await served.detokenized(ids, skip_special_tokens=skip) == text


async def test_a_prompt_is_as_long_for_generate_as_for_tokenize(
    tiny: System, tiny_dir: Path
) -> None:
    message = pb.ChatMessage(role="user", content=KOREAN)
    stop = pb.StopParams(max_tokens=1)
    async with tiny.client() as stub:
        text = await stub.Tokenize(pb.TokenizeRequest(text=ENGLISH))
        chat = await stub.Tokenize(
            pb.TokenizeRequest(chat=pb.ChatMessages(messages=[message]), model=tiny_dir.name)
        )
        of_text = await stub.Generate(pb.GenerateRequest(text=ENGLISH, stop=stop)).read()
        of_chat = await stub.Chat(pb.ChatRequest(messages=[message], stop=stop)).read()
    assert of_text.started.prompt_tokens == len(text.token_ids)
    assert of_chat.started.prompt_tokens == len(chat.token_ids)
