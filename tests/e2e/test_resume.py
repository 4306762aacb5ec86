"""An answer that was cut off goes on through the whole system as if it had not been."""

from __future__ import annotations

import pytest
from pagewire.v1 import inference_pb2 as pb
from pagewire.v1 import sampling_pb2

from tests.e2e.system import System

NUM_TOKENS = 24
DRAWN = sampling_pb2.SamplingParams(
    temperature=1.0, seed=7, presence_penalty=0.5, frequency_penalty=0.2, min_p=0.01
)
GREEDY = sampling_pb2.SamplingParams(temperature=0)


@pytest.mark.parametrize("sampling", [DRAWN, GREEDY], ids=["drawn", "greedy"])
async def test_the_same_request_with_the_ids_so_far_gets_the_rest(
    sampling: sampling_pb2.SamplingParams, tiny: System
) -> None:
    request = pb.GenerateRequest(
        text="Once upon", sampling=sampling, stop=pb.StopParams(max_tokens=NUM_TOKENS)
    )
    request.stop.ignore_eos = True
    async with tiny.client() as stub:
        text, ids, _ = await answer(stub, request)
        assert len(ids) == NUM_TOKENS
        for resume_len in (1, 15, NUM_TOKENS - 1, NUM_TOKENS):
            again = pb.GenerateRequest()
            again.CopyFrom(request)
            again.resume_token_ids[:] = ids[:resume_len]
            rest, new_ids, finished = await answer(stub, again)
            assert (rest, new_ids) == (text, ids[resume_len:])
            assert finished.usage.completion_tokens == NUM_TOKENS
            assert finished.reason == pb.FINISH_REASON_LENGTH


async def answer(stub, request: pb.GenerateRequest) -> tuple[str, list[int], pb.Finished]:
    """All of the text, what of it was resumed included; the new ids; the end."""
    text, ids, finished = "", [], pb.Finished()
    async for response in stub.Generate(request):
        text += response.started.resumed_text + response.delta.text
        ids += response.delta.token_ids
        finished = response.finished
    return text, ids, finished
