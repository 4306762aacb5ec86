"""Cases of kind 6, from the client's side: what a draw depends on, and ids and numbers that cannot
be. What the runner makes of them alone is tested in tests/runnersvc and tests/kernels.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from pagewire.v1 import inference_pb2 as pb
from pagewire.v1 import sampling_pb2

from servicekit.model_dir import model_name
from servicekit.status import error_of
from tests.e2e.neighbour import undisturbed
from tests.e2e.system import System, ids_of
from tests.e2e.tiny_model import END_IDS, VOCAB_SIZE

PROMPT = [5, 6, 7]
BEYOND = (-1, VOCAB_SIZE, VOCAB_SIZE + 1, 2**40)


def drawing(seed: int | None, max_tokens: int = 40, **fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=PROMPT),
        sampling=sampling_pb2.SamplingParams(temperature=0.8, seed=seed),
        stop=pb.StopParams(max_tokens=max_tokens, ignore_eos=True),
        **fields,
    )


async def post(system: System, path: str, **fields: Any) -> httpx2.Response:
    body = {"model": model_name(system.model_dir), "max_tokens": 8, "ignore_eos": True}
    body |= {"prompt": PROMPT} if path == "completions" else {}
    body |= {"messages": [{"role": "user", "content": "hi"}]} if path == "chat/completions" else {}
    async with httpx2.AsyncClient(base_url=f"http://{system.http_address}/v1/") as http:
        return await http.post(path, json=body | fields, timeout=60)


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
async def test_case_6_3_a_seed_draws_the_same_whatever_runs_beside_it(
    seed: int, tiny: System
) -> None:
    """vllm-project/vllm #51226: a seed was forgotten as soon as a row of the batch had none. Alone,
    in other rows, beside rows without a seed that end and come, and after a preemption.
    """
    async with tiny.client() as stub:
        alone = await ids_of(stub.Generate(drawing(seed)))
        calls = [stub.Generate(drawing(None, 5 + 9 * nth)) for nth in range(3)]
        calls += [stub.Generate(drawing(seed)) for _ in range(2)]
        calls += [stub.Generate(drawing(None)) for _ in range(3)]
        among = await asyncio.gather(*(ids_of(call) for call in calls))
        before = (await tiny.settled()).preempted_total
        long = [stub.Generate(drawing(seed, 120)) for _ in range(4)]
        pressed = await asyncio.gather(*(ids_of(call) for call in long))
    assert among[3] == among[4] == alone
    assert (await tiny.settled()).preempted_total > before
    assert [ids[:40] for ids in pressed] == [alone] * 4
    assert pressed == [pressed[0]] * 4


async def test_case_6_3_choices_of_one_seed_differ_and_are_the_same_again(tiny: System) -> None:
    async with tiny.client() as stub:
        (alone,) = await choices_of(stub.Generate(drawing(7)), 1)
        two = await choices_of(stub.Generate(drawing(7, n=2)), 2)
        three = await choices_of(stub.Generate(drawing(7, n=3)), 3)
    assert two[0] == alone
    assert three[:2] == two
    assert len({tuple(ids) for ids in three}) == 3
    assert {len(ids) for ids in three} == {40}
    await tiny.settled()


async def choices_of(call: grpc.aio.Call, count: int) -> list[list[int]]:
    ids: list[list[int]] = [[] for _ in range(count)]
    async for response in call:
        ids[response.delta.choice] += response.delta.token_ids
    return ids


async def test_case_6_3_two_requests_without_a_seed_differ(tiny: System) -> None:
    async with tiny.client() as stub:
        both = await asyncio.gather(*(ids_of(stub.Generate(drawing(None))) for _ in range(2)))
    assert both[0] != both[1]


OVER_HTTP = {
    "a prompt id": [("completions", {"prompt": [1, token_id]}, "prompt") for token_id in BEYOND],
    "a bias": [
        (path, {"logit_bias": {key: 1}}, "logit_bias")
        for path in ("completions", "chat/completions")
        for key in (*map(str, BEYOND), "abc", "1.5", "")
    ],
    "a stop id": [
        (path, {"stop_token_ids": [token_id], "min_tokens": 5}, "stop_token_ids")
        for path in ("completions", "chat/completions")
        for token_id in BEYOND
    ],
    "log probabilities": [
        ("completions", {"logprobs": VOCAB_SIZE + 1}, "logprobs"),
        ("chat/completions", {"logprobs": True, "top_logprobs": VOCAB_SIZE + 1}, "top_logprobs"),
    ],
}


@pytest.mark.parametrize("name", OVER_HTTP)
async def test_case_6_4_an_id_beyond_the_models_vocabulary_is_refused_by_name(
    name: str, tiny: System, tiny_dir: Path
) -> None:
    """sgl-project/sglang #7670: it was an index, unchecked, and killed the engine or a
    neighbour's logits.
    """
    async with undisturbed(tiny, tiny_dir):
        for path, fields, param in OVER_HTTP[name]:
            response = await post(tiny, path, **fields)
            assert response.status_code == 400, (fields, response.text)
            error = response.json()["error"]
            assert error["param"].partition(".")[0].partition("[")[0] == param
            assert param in error["message"]
        assert (await post(tiny, "completions")).status_code == 200


async def test_case_6_4_an_id_beyond_the_vocabulary_is_refused_over_grpc(
    tiny: System, tiny_dir: Path
) -> None:
    """2 ** 40 does not fit the field there."""
    async with undisturbed(tiny, tiny_dir), tiny.client() as stub:
        for token_id in (-1, VOCAB_SIZE, VOCAB_SIZE + 1):
            bias = sampling_pb2.LogitBias(token_id=token_id, bias=1)
            for field, request in (
                ("prompt", pb.CompleteRequest(token_ids=pb.TokenIds(ids=[1, token_id]))),
                ("sampling.logit_bias", completing(sampling={"logit_bias": [bias]})),
                ("stop.token_ids", completing(stop={"token_ids": [token_id], "min_tokens": 5})),
            ):
                error = await refusal(stub.Complete(request))
                assert (error.code_name, error.metadata["field"]) == ("INVALID_ARGUMENT", field)
        error = await refusal(stub.Complete(completing(sampling={"logprobs": VOCAB_SIZE + 1})))
        assert error.metadata["field"] == "sampling.logprobs"


async def test_case_6_4_the_bound_is_the_models_vocabulary_and_not_the_tokenizers(
    tiny: System,
) -> None:
    last = VOCAB_SIZE - 1  # the tokenizer knows 258
    fields = {"logit_bias": {str(last): 1}, "stop_token_ids": [last], "prompt": [last]}
    assert (await post(tiny, "completions", **fields)).status_code == 200


def completing(
    sampling: dict[str, Any] | None = None, stop: dict[str, Any] | None = None
) -> pb.CompleteRequest:
    return pb.CompleteRequest(
        token_ids=pb.TokenIds(ids=PROMPT),
        sampling=sampling_pb2.SamplingParams(**(sampling or {})),
        stop=pb.StopParams(**({"max_tokens": 8} | (stop or {}))),
    )


async def refusal(call: grpc.aio.Call) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_of(caught.value)


async def test_case_6_5_top_k_is_off_greedy_or_refused(tiny: System, tiny_dir: Path) -> None:
    """torch-spyre/sendnn-inference #542: a top_k over the vocabulary was passed on. Each beside a
    greedy row, and alone.
    """
    drawn = {"temperature": 0.8, "seed": 3, "logprobs": 0}

    async def tokens(**fields: Any) -> list[str]:
        response = await post(tiny, "completions", **(drawn | fields))
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["logprobs"]["tokens"]

    async def check() -> None:
        off = await tokens()
        for top_k in (-1, 0, VOCAB_SIZE, VOCAB_SIZE + 1, 10**9):
            assert await tokens(top_k=top_k) == off
        assert await tokens(top_k=1) == await tokens(temperature=0) != off
        for top_k in (-2, 2.5):
            response = await post(tiny, "completions", top_k=top_k)
            assert (response.status_code, response.json()["error"]["param"]) == (400, "top_k")

    async with undisturbed(tiny, tiny_dir):
        await check()
    await check()


@pytest.mark.parametrize("end_id", END_IDS)
@pytest.mark.parametrize("prompt_len", [3, 100])
async def test_case_6_7_an_answer_has_min_tokens_ordinary_tokens_and_then_ends(
    end_id: int, prompt_len: int, tiny: System
) -> None:
    """vllm-project/vllm PR #46243: end tokens were let go a step late, and only the main one was
    held back. Here one of the two that generation_config.json lists always wins.
    """
    async with tiny.client() as stub:
        for min_tokens in (0, 1, 4):
            request = pb.CompleteRequest(
                token_ids=pb.TokenIds(ids=[5] * prompt_len),
                sampling=sampling_pb2.SamplingParams(
                    temperature=0, logit_bias=[sampling_pb2.LogitBias(token_id=end_id, bias=100)]
                ),
                stop=pb.StopParams(max_tokens=20, min_tokens=min_tokens),
            )
            answer = await stub.Complete(request)
            assert answer.finished.end_token_id == end_id
            assert answer.finished.usage.completion_tokens == min_tokens + 1
            *ordinary, last = answer.token_ids
            assert (len(ordinary), last) == (min_tokens, end_id)
            assert not set(ordinary) & set(END_IDS)


async def test_case_6_7_more_min_tokens_than_max_tokens_are_refused_by_name(tiny: System) -> None:
    response = await post(tiny, "completions", max_tokens=3, min_tokens=4)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "min_tokens")
    assert "4" in error["message"]
