"""The router's GenerateRequest as the gateway's own."""

from __future__ import annotations

import secrets

from smg_grpc_proto import vllm_engine_pb2 as pb

from gateway import off_loop
from gateway.generation import GenerationRequest
from gateway.smg.served_fields import check_generate
from gateway.tokenizer import Tokenizer
from servicekit.sampling import Sampling


async def generation_request(
    request: pb.GenerateRequest,
    request_id: str,
    tokenizer: Tokenizer,
    *,
    remaining_s: float | None,
    traceparent: str,
) -> GenerationRequest:
    """Errors: InvalidArgument names a field that is not served, or not as it is given."""
    check_generate(request)
    params = request.sampling_params
    return GenerationRequest(
        request_id=request_id,
        prompt_ids=await _prompt_ids(request, tokenizer),
        sampling=_sampling(params),
        max_tokens=params.max_tokens if params.HasField("max_tokens") else None,
        stop_strings=list(params.stop),
        stop_token_ids=list(params.stop_token_ids),
        ignore_eos=params.ignore_eos,
        min_tokens=params.min_tokens,
        include_stop=True,  # the router looks for the stop string itself, and cuts the text there
        whole_ids=True,
        remaining_s=remaining_s,
        traceparent=traceparent,
    )


async def _prompt_ids(request: pb.GenerateRequest, tokenizer: Tokenizer) -> list[int]:
    if request.WhichOneof("input") == "text":
        return await off_loop.encode(tokenizer, request.text) if request.text else []
    return list(request.tokenized.input_ids)


def _sampling(params: pb.SamplingParams) -> Sampling:
    """A 0 where 0 cannot be means that nothing was given."""
    return Sampling(
        temperature=params.temperature if params.HasField("temperature") else 1.0,
        top_k=params.top_k,
        top_p=params.top_p or 1.0,
        seed=params.seed if params.HasField("seed") else secrets.randbits(63),
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty or 1.0,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=tuple(params.logit_bias.items()),
        logprobs=params.logprobs if params.HasField("logprobs") else None,
    )
