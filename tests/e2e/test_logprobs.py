"""Log probabilities arrive with their tokens, and are the model's own."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
import torch
from pagewire.v1 import inference_pb2 as pb

from tests.e2e.system import System, greedy
from tests.e2e.tiny_model import clear_prompt, reference_model

NUM_TOKENS = 24


async def asked(
    system: System, request: pb.GenerateRequest
) -> tuple[list[int], list[pb.TokenLogprob]]:
    ids: list[int] = []
    logprobs: list[pb.TokenLogprob] = []
    async with system.client() as stub:
        call = stub.Generate(request)
        while (response := await call.read()) is not grpc.aio.EOF:
            ids += response.delta.token_ids
            logprobs += response.delta.logprobs
            assert len(ids) == len(logprobs), "they come with their tokens"
    return ids, logprobs


async def test_each_token_has_its_own_and_those_of_the_likeliest(
    tiny: System, tiny_dir: Path
) -> None:
    prompt, answer = clear_prompt(tiny_dir, 9, NUM_TOKENS)
    request = greedy(prompt, NUM_TOKENS)
    request.sampling.logprobs = 3
    ids, logprobs = await asked(tiny, request)
    assert ids == answer
    with torch.inference_mode():
        logits = reference_model(tiny_dir)(torch.tensor([prompt + answer])).logits[0]
    expected = logits[len(prompt) - 1 : -1].log_softmax(-1)
    for token_id, one, row in zip(ids, logprobs, expected, strict=True):
        assert one.logprob == pytest.approx(float(row[token_id]), abs=1e-3)
        best = row.topk(3)
        assert [top.token_id for top in one.top] == best.indices.tolist()
        assert [top.logprob for top in one.top] == pytest.approx(best.values.tolist(), abs=1e-3)
    await tiny.settled()


async def test_zero_asks_for_the_sampled_token_alone_and_a_unary_call_has_them_too(
    tiny: System, tiny_dir: Path
) -> None:
    prompt, answer = clear_prompt(tiny_dir, 9, 8)
    streamed = greedy(prompt, 8)
    request = pb.CompleteRequest(
        token_ids=streamed.token_ids, sampling=streamed.sampling, stop=streamed.stop
    )
    request.sampling.logprobs = 0
    async with tiny.client() as stub:
        completed = await stub.Complete(request)
    assert list(completed.token_ids) == answer
    assert len(completed.logprobs) == 8
    assert all(one.logprob <= 0 and not one.top for one in completed.logprobs)
