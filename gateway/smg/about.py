"""What a router hears of the model and of the server."""

from __future__ import annotations

from smg_grpc_proto import vllm_engine_pb2 as pb

from gateway.front import Front

SERVER_TYPE = "vllm-grpc"  # the protocol's name for who speaks it
NO_PATH = "/dev/null"  # is there and no tokenizer: smg then asks GetTokenizer, and no hub before


def about_model(front: Front) -> pb.GetModelInfoResponse:
    """The context length is 0, not known, before the first runner: a router asks once, and one that
    gets no answer serves a model without a name.
    """
    model = front.model
    return pb.GetModelInfoResponse(
        model_path=NO_PATH,
        tokenizer_path=NO_PATH,
        served_model_name=model.name,
        is_generation=True,
        max_context_length=front.max_seq_len or 0,
        vocab_size=model.vocab_size,
        model_type=model.model_type,
        architectures=[model.architecture] if model.architecture else [],
        eos_token_ids=model.end_token_ids,
        bos_token_id=front.tokenizer.bos_token_id,
    )


def about_server(front: Front, uptime_s: float) -> pb.GetServerInfoResponse:
    return pb.GetServerInfoResponse(
        server_type=SERVER_TYPE,
        active_requests=front.totals.live_answers,
        uptime_seconds=uptime_s,
        data_parallel_size=1,
        model_dtype=front.model.stored_dtype,
    )
