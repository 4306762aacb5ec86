"""/v1/chat/completions: what of a request reaches the manager, and how its answer comes."""

from __future__ import annotations

import pytest

from tests.gateway.fake_cache import finished, likely
from tests.gateway.front import accepted
from tests.gateway.http.surface import CHAT, MAX_TOKENS, STOP_TOKEN, Surface, chunks_of

USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "total_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 2},
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"name": "weather", "arguments": '{"city": "Oslo"}'}


async def test_every_parameter_reaches_the_manager(surface: Surface) -> None:
    call = surface.ask(
        CHAT,
        temperature=0.5,
        top_k=7,
        top_p=0.75,
        min_p=0.25,
        seed=-3,
        repetition_penalty=1.5,
        presence_penalty=-1,
        frequency_penalty=2,
        logit_bias={"5": -100, "6": 1.5},
        max_tokens=3,
        min_tokens=2,
        stop_token_ids=[9],
        ignore_eos=True,
        priority=4,
        cache_salt="mine",
    )
    submit = await surface.submitted()
    surface.say(submit, [5])
    assert (await call).status_code == 200
    sampling = {field.name: value for field, value in submit.sampling.ListFields()}
    biases = {bias.token_id: bias.bias for bias in sampling.pop("logit_bias")}
    assert sampling == {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.75,
        "min_p": 0.25,
        "seed": -3,
        "repetition_penalty": 1.5,
        "presence_penalty": -1,
        "frequency_penalty": 2,
    }
    assert biases == {5: -100, 6: 1.5}
    assert (submit.max_tokens, submit.min_tokens, list(submit.stop_token_ids)) == (3, 2, [9])
    assert (submit.priority, submit.cache_salt) == (4, "mine")


async def test_what_is_null_is_as_if_it_was_not_given(surface: Surface) -> None:
    """Clients send every field that they know; then the model's end token stops, as by default."""
    names = "temperature top_k top_p min_p max_tokens max_completion_tokens min_tokens stop n user"
    names += " stop_token_ids ignore_eos stream stream_options logit_bias logprobs top_logprobs"
    names += " tools tool_choice response_format priority cache_salt presence_penalty"
    call = surface.ask(CHAT, **dict.fromkeys(names.split()))
    submit = await surface.submitted()
    surface.say(submit, [5])
    assert (await call).status_code == 200
    assert submit.sampling.temperature == 1
    assert not submit.HasField("max_tokens")
    assert list(submit.stop_token_ids) == sorted(surface.tokenizer.end_token_ids)


async def test_the_seed_is_drawn_unless_it_is_given(surface: Surface) -> None:
    seeds = set()
    for _ in range(2):
        call = surface.ask(CHAT)
        submit = await surface.submitted()
        surface.say(submit, [5])
        await call
        seeds.add(submit.sampling.seed)
    assert len(seeds) == 2


@pytest.mark.parametrize(
    "names", [["max_tokens"], ["max_completion_tokens"], ["max_tokens", "max_completion_tokens"]]
)
async def test_max_tokens_has_two_names(surface: Surface, names: list[str]) -> None:
    call = surface.ask(CHAT, **dict.fromkeys(names, 3))
    submit = await surface.submitted()
    surface.say(submit, [5])
    await call
    assert submit.max_tokens == 3


async def test_messages_are_rendered_by_the_models_template(surface: Surface) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    called = {"id": "1", "type": "function", "function": CALL}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [called], "refusal": None},
        {"role": "tool", "content": "snow", "tool_call_id": "1", "name": "weather"},
    ]
    call = surface.ask(CHAT, messages=messages, tools=[TOOL], tool_choice="auto")
    submit = await surface.submitted()
    surface.say(submit, [5])
    await call
    assert surface.tokenizer.decode(submit.prompt_ids) == (
        "tool:weather system:Be brief. user:Hello assistant: call:Oslo tool:snow "
    )


async def test_tool_choice_none_keeps_tools_from_the_template(surface: Surface) -> None:
    call = surface.ask(CHAT, tools=[TOOL], tool_choice="none")
    submit = await surface.submitted()
    surface.say(submit, [5])
    await call
    assert surface.tokenizer.decode(submit.prompt_ids) == "user:Hi "


async def test_an_answer_has_its_text_its_reason_and_what_it_used(surface: Surface) -> None:
    call = surface.ask(CHAT)
    submit = await surface.submitted()
    (end_id,) = surface.tokenizer.end_token_ids
    ids = surface.tokenizer.encode("so")
    assert len(ids) == 2
    surface.say(submit, [*ids, end_id], STOP_TOKEN, cached_tokens=2)
    answer = (await call).json()
    assert answer.pop("id") == submit.request_id
    assert submit.request_id.startswith("chatcmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "so"},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
    }


async def test_case_8_4_a_stream_has_a_role_first_a_reason_last_then_its_usage(
    surface: Surface,
) -> None:
    """Case 8.4: one usage chunk without choices, null in the others, equal to that of the answer as
    a whole; one reason for each choice.
    """
    call = surface.ask(CHAT, stream=True, stream_options={"include_usage": True})
    submit = await surface.submitted()
    (end_id,) = surface.tokenizer.end_token_ids
    surface.say(submit, [*surface.tokenizer.encode("so"), end_id], STOP_TOKEN, cached_tokens=2)
    *chunks, last = chunks_of(await call)
    assert {chunk["id"] for chunk in [*chunks, last]} == {submit.request_id}
    assert {chunk["object"] for chunk in [*chunks, last]} == {"chat.completion.chunk"}
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    assert (last["choices"], last["usage"]) == ([], USAGE)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    first, *middle, end = choices
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert "".join(choice["delta"]["content"] for choice in middle) == "so"
    assert end == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)


async def test_a_stream_without_include_usage_does_not_speak_of_it(surface: Surface) -> None:
    chunks = chunks_of(await surface.answered(CHAT, [5], stream=True))
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


async def test_a_stop_string_ends_the_answer_and_is_no_part_of_it_unless_wanted(
    surface: Surface,
) -> None:
    ids = surface.tokenizer.encode("one two three")
    for stop, wanted in ((" two", False), ([" two", "x"], True)):
        call = surface.ask(CHAT, stop=stop, include_stop_str_in_output=wanted)
        surface.say(await surface.submitted(), ids)
        (choice,) = (await call).json()["choices"]
        assert choice["message"]["content"] == ("one two" if wanted else "one")
        assert choice["finish_reason"] == "stop"
        await surface.cache.next("stop")


async def test_the_trace_context_of_the_caller_goes_along(surface: Surface) -> None:
    traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    surface.http.headers["traceparent"] = traceparent
    call = surface.ask(CHAT)
    submit = await surface.submitted()
    surface.say(submit, [5])
    await call
    assert submit.traceparent == traceparent


async def test_log_probabilities_stand_beside_each_token_as_in_a_stream(surface: Surface) -> None:
    """A part of a character has its bytes, not null; JSON gets a number for minus infinity."""
    answers = []
    for stream in (False, True):
        call = surface.ask(CHAT, logprobs=True, top_logprobs=2, stream=stream)
        submit = await surface.submitted()
        assert submit.sampling.logprobs == 2
        ids = surface.say_thumb_with_logprobs(submit)
        answers.append(await call)
    (choice,) = answers[0].json()["choices"]
    content = choice["logprobs"]["content"]
    assert choice["logprobs"]["refusal"] is None
    assert choice["message"]["content"] == "o👍"
    assert [one["token"] for one in content] == ["o", *["\ufffd"] * 4, "</s>"]
    parts = [[byte] for byte in "👍".encode()]
    assert [one["bytes"] for one in content] == [[111], *parts, list(b"</s>")]
    assert len(content) == len(ids)
    for one in content:
        assert one["logprob"] == -2.5
        likeliest, never = one["top_logprobs"]
        assert likeliest == {"token": "</s>", "logprob": -0.5, "bytes": list(b"</s>")}
        assert never["logprob"] == -9999

    choices = [chunk["choices"][0] for chunk in chunks_of(answers[1])]
    streamed = [one for each in choices if each["logprobs"] for one in each["logprobs"]["content"]]
    assert streamed == content
    assert "".join(each["delta"].get("content", "") for each in choices) == "o👍"
    assert (choices[0]["logprobs"], choices[-1]["logprobs"]) == (None, None)


@pytest.mark.parametrize("top", [{}, {"top_logprobs": 0}, {"top_logprobs": None}])
async def test_log_probabilities_alone_are_those_of_the_answers_tokens(
    surface: Surface, top: dict[str, object]
) -> None:
    call = surface.ask(CHAT, logprobs=True, **top)
    submit = await surface.submitted()
    assert submit.sampling.HasField("logprobs")
    assert submit.sampling.logprobs == 0
    surface.say(submit, [5])
    assert (await call).status_code == 200


async def test_a_turn_goes_back_as_the_openai_package_dumps_it(surface: Surface) -> None:
    said = {"role": "assistant", "content": "so", "refusal": None, "annotations": None}
    said |= {"audio": None, "function_call": None, "tool_calls": None}
    call = surface.ask(CHAT, messages=[said], parallel_tool_calls=True)
    surface.say(await surface.submitted(), [5])
    assert (await call).status_code == 200


async def test_choices_share_a_prompt_and_a_seed_and_are_told_apart_by_their_index(
    surface: Surface,
) -> None:
    """Case 8.4: each with a role first and one reason last, the prompt counted once."""
    call = surface.ask(CHAT, n=3, stream=True, stream_options={"include_usage": True})
    submits = [await surface.submitted() for _ in range(3)]
    assert [submit.choice for submit in submits] == [0, 1, 2]
    assert {submit.sampling.seed for submit in submits} == {submits[0].sampling.seed}
    assert {submit.request_id for submit in submits} == {submits[0].request_id}
    assert not submits[0].HasField("first_choice_key")
    assert {submit.first_choice_key for submit in submits[1:]} == {submits[0].key}
    for submit, text in zip(reversed(submits), ["zzz", "yy", "x"], strict=True):
        surface.say(submit, surface.tokenizer.encode(text), cached_tokens=submit.choice * 3)
    *chunks, last = chunks_of(await call)
    for idx, text in enumerate(["x", "yy", "zzz"]):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == idx]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"].get("content", "") for choice in mine) == text
        assert [choice["finish_reason"] for choice in mine] == [None] * (len(mine) - 1) + ["length"]
    prompt_len = len(submits[0].prompt_ids)
    assert last["usage"] == {
        "prompt_tokens": prompt_len,
        "completion_tokens": 6,
        "total_tokens": prompt_len + 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert surface.front.totals.prompt_tokens == prompt_len
    assert surface.front.totals.completion_tokens == 6


async def test_case_8_7_an_answer_over_4_mib_is_answered(surface: Surface) -> None:
    """Case 8.7: many log probabilities."""
    num_tokens = 5_000
    call = surface.ask(CHAT, logprobs=True, top_logprobs=20)
    submit = await surface.submitted()
    surface.put(accepted(submit.key), likely(submit.key, *[40] * num_tokens, top=20))
    surface.put(finished(submit.key, MAX_TOKENS))
    response = await call
    assert len(response.content) > 4 * 2**20
    content = response.json()["choices"][0]["logprobs"]["content"]
    assert {len(one["top_logprobs"]) for one in content} == {20}
    assert len(content) == num_tokens
