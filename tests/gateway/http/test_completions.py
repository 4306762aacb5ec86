"""/v1/completions: prompts of every kind, and a choice for each."""

from __future__ import annotations

from typing import Any

import pytest
from pagewire.v1 import cache_pb2

from tests.gateway.front import accepted
from tests.gateway.http.surface import COMPLETIONS, Surface, chunks_of


async def submits(surface: Surface, count: int) -> list[Any]:
    """In the order of their prompts, whatever order they came in."""
    came = [await surface.submitted() for _ in range(count)]
    return sorted(came, key=lambda submit: submit.request_id)


@pytest.mark.parametrize(
    ("prompt", "text"), [("Hi", "Hi"), ([5, 6], None), (["Hi"], "Hi"), ([[5, 6]], None)]
)
async def test_one_prompt_is_a_text_or_ids(
    surface: Surface, prompt: object, text: str | None
) -> None:
    call = surface.ask(COMPLETIONS, prompt=prompt)
    submit = await surface.submitted()
    surface.say(submit, [7])
    answer = (await call).json()
    ids = [5, 6] if text is None else surface.tokenizer.encode(text)
    assert list(submit.prompt_ids) == ids
    assert answer["id"] == submit.request_id
    assert submit.request_id.startswith("cmpl-")
    assert (answer["object"], answer["model"]) == ("text_completion", "tiny")


@pytest.mark.parametrize("prompts", [["ab", "c", "d"], [[5, 6], [7], [8]]])
async def test_several_prompts_are_as_many_choices_in_their_order(
    surface: Surface, prompts: list
) -> None:
    call = surface.ask(COMPLETIONS, prompt=prompts)
    texts = ["x", "yy", "zzz"]
    came = await submits(surface, 3)
    for submit, text in reversed(list(zip(came, texts, strict=True))):  # the last one ends first
        surface.say(submit, surface.tokenizer.encode(text), cached_tokens=1)
    answer = (await call).json()
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
        (0, "x"),
        (1, "yy"),
        (2, "zzz"),
    ]
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    assert answer["usage"] == {
        "prompt_tokens": sum(len(submit.prompt_ids) for submit in came),
        "completion_tokens": 6,
        "total_tokens": sum(len(submit.prompt_ids) for submit in came) + 6,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    assert [submit.request_id for submit in came] == [f"{answer['id']}-{idx}" for idx in range(3)]


async def test_case_8_4_a_stream_of_several_choices_ends_each_once_and_sums_their_usage(
    surface: Surface,
) -> None:
    """Case 8.4: completion_tokens counted one choice, or one chunk."""
    usage = {"include_usage": True}
    call = surface.ask(COMPLETIONS, prompt=["a", "b"], stream=True, stream_options=usage)
    for submit, text in zip(await submits(surface, 2), ["one two", "three"], strict=True):
        surface.say(submit, surface.tokenizer.encode(text))
    *chunks, last = chunks_of(await call)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for idx, text in enumerate(["one two", "three"]):
        mine = [choice for choice in choices if choice["index"] == idx]
        assert "".join(choice["text"] for choice in mine) == text
        assert [choice["finish_reason"] for choice in mine] == [None] * (len(mine) - 1) + ["length"]
    num_tokens = sum(len(surface.tokenizer.encode(text)) for text in ("one two", "three"))
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == num_tokens
    assert all(chunk["usage"] is None for chunk in chunks)


@pytest.mark.parametrize(
    ("asked", "prompt_len", "submitted"),
    [
        ({}, 2, 16),
        ({"max_tokens": None}, 2, 16),
        ({"max_tokens": 40}, 2, 40),
        ({"min_tokens": 20}, 2, 20),
        ({}, 60, 4),
    ],
)
async def test_sixteen_tokens_unless_more_are_asked_for_or_fewer_fit(
    surface: Surface, asked: dict, prompt_len: int, submitted: int
) -> None:
    """OpenAI's default; the runner's max_seq_len is 64."""
    call = surface.ask(COMPLETIONS, prompt=[5] * prompt_len, **asked)
    submit = await surface.submitted()
    surface.say(submit, [7])
    await call
    assert submit.max_tokens == submitted


async def test_one_refused_prompt_refuses_the_call_and_leaves_the_others(surface: Surface) -> None:
    """Case 8.5: before the first byte of a stream, although the other one was taken."""
    call = surface.ask(COMPLETIONS, prompt=["a", "b"], stream=True)
    taken, refused = await submits(surface, 2)
    rejected = cache_pb2.Rejected(
        key=refused.key, code="INVALID_ARGUMENT", reason="PROMPT_TOO_LONG", message="too long"
    )
    surface.put(accepted(taken.key), cache_pb2.SessionResponse(rejected=[rejected]))
    response = await call
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert (await surface.cache.next("cancel")).key == taken.key


async def test_max_tokens_0_is_not_taken_for_none(surface: Surface) -> None:
    """The manager refuses it."""
    call = surface.ask(COMPLETIONS, max_tokens=0)
    submit = await surface.submitted()
    assert submit.HasField("max_tokens")
    assert submit.max_tokens == 0
    surface.say(submit, [5])
    await call


async def test_log_probabilities_are_four_lists_in_pieces_as_in_the_whole(
    surface: Surface,
) -> None:
    """OpenAI's older form: offsets are in the answer's text, and go on from chunk to chunk."""
    answers = []
    for stream in (False, True):
        call = surface.ask(COMPLETIONS, logprobs=2, stream=stream)
        submit = await surface.submitted()
        assert submit.sampling.logprobs == 2
        surface.say_thumb_with_logprobs(submit)
        answers.append(await call)
    (choice,) = answers[0].json()["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"] == "o👍"
    assert logprobs["tokens"] == ["o", *["\ufffd"] * 4, "</s>"]
    assert logprobs["token_logprobs"] == [-2.5] * 6
    assert logprobs["text_offset"] == [0, 1, 1, 1, 1, 2]
    never = surface.tokenizer.decode([5])
    assert logprobs["top_logprobs"][0] == {"</s>": -0.5, never: -9999, "o": -2.5}
    assert logprobs["top_logprobs"][-1] == {"</s>": -0.5, never: -9999}, "itself the likeliest"

    choices = [chunk["choices"][0] for chunk in chunks_of(answers[1])]
    pieces = [each["logprobs"] for each in choices if each["logprobs"]]
    for name, entries in logprobs.items():
        assert [entry for piece in pieces for entry in piece[name]] == entries
    assert len(pieces) > 1
    assert choices[-1]["logprobs"] is None


async def test_logprobs_0_are_those_of_the_answers_tokens_alone(surface: Surface) -> None:
    call = surface.ask(COMPLETIONS, logprobs=0)
    submit = await surface.submitted()
    assert submit.sampling.HasField("logprobs")
    assert submit.sampling.logprobs == 0
    one = cache_pb2.TokenLogprobs(key=submit.key, chosen=-0.25)
    output = cache_pb2.StepOutput(
        keys=[submit.key], token_ids=surface.tokenizer.encode("x"), logprobs=[one]
    )
    surface.put(cache_pb2.SessionResponse(step_output=output))
    surface.say(submit, [])
    logprobs = (await call).json()["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["x"],
        "token_logprobs": [-0.25],
        "top_logprobs": [{"x": -0.25}],
        "text_offset": [0],
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_comes_before_each_answer(surface: Surface, stream: bool) -> None:
    """A text as it was sent, ids decoded as the answer is."""
    ids = surface.tokenizer.encode("a fox</s>")
    for prompt, echoes in ((["ab ", "c"], ["ab ", "ab ", "c", "c"]), ([ids], ["a fox"] * 2)):
        call = surface.ask(COMPLETIONS, prompt=prompt, echo=True, n=2, stream=stream)
        for submit in await submits(surface, len(echoes)):
            surface.say(submit, surface.tokenizer.encode("x" * (submit.choice + 1)))
        response = await call
        said = chunks_of(response) if stream else [response.json()]
        texts = dict.fromkeys(range(len(echoes)), "")
        for choice in (choice for each in said for choice in each["choices"]):
            texts[choice["index"]] += choice["text"]
        assert list(texts.values()) == [
            echo + "x" * (idx % 2 + 1) for idx, echo in enumerate(echoes)
        ]


async def test_choices_of_several_prompts_are_numbered_one_prompt_after_the_other(
    surface: Surface,
) -> None:
    call = surface.ask(COMPLETIONS, prompt=["ab", "c"], n=2)
    came = await submits(surface, 4)
    for submit in reversed(came):
        text = f"{submit.request_id[-1]}{submit.choice}"
        surface.say(submit, surface.tokenizer.encode(text))
    answer = (await call).json()
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
        (0, "00"),
        (1, "01"),
        (2, "10"),
        (3, "11"),
    ]
    assert answer["usage"]["prompt_tokens"] == sum(
        len(submit.prompt_ids) for submit in came if submit.choice == 0
    )
    assert answer["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("n", [None, 1])
async def test_one_choice_is_what_nobody_asks_for(surface: Surface, n: int | None) -> None:
    answer = (await surface.answered(COMPLETIONS, [7], n=n, best_of=n)).json()
    assert len(answer["choices"]) == 1
