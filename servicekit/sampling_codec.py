"""Sampling parameters between `servicekit.sampling` and `sampling.proto`."""

from __future__ import annotations

from typing import Any

from pagewire.v1 import sampling_pb2 as pb

from servicekit.sampling import Sampling


def decode_sampling(params: pb.SamplingParams, *, seed: int | None = None) -> Sampling:
    """What is absent has its default; the seed `seed`, when that is given. Errors: InvalidArgument
    INVALID_FIELD.
    """
    given: dict[str, Any] = {} if seed is None else {"seed": seed}
    given |= {field.name: value for field, value in params.ListFields()}
    if "logit_bias" in given:
        given["logit_bias"] = tuple((one.token_id, one.bias) for one in params.logit_bias)
    return Sampling(**given)


def encode_sampling(sampling: Sampling) -> pb.SamplingParams:
    return pb.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logprobs=sampling.logprobs,
        logit_bias=[
            pb.LogitBias(token_id=token_id, bias=bias) for token_id, bias in sampling.logit_bias
        ],
    )
