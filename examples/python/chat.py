"""Streams the answer to a question over gRPC, with the messages made from protos/.

    python chat.py QUESTION [TEMPERATURE]

The server is at $PAGEWIRE_ADDRESS, else 127.0.0.1:50051.
"""

import os
import sys

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from pagewire.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2


def ask(address: str, question: str, temperature: float) -> None:
    request = inference_pb2.ChatRequest(
        messages=[inference_pb2.ChatMessage(role="user", content=question)],
        sampling=sampling_pb2.SamplingParams(temperature=temperature),
        stop=inference_pb2.StopParams(max_tokens=64),
    )
    with grpc.insecure_channel(address) as channel:
        # The timeout is a deadline: the server drops the request when it is over.
        for response in inference_pb2_grpc.InferenceServiceStub(channel).Chat(request, timeout=60):
            print(response.delta.text, end="", flush=True)
            if response.HasField("finished"):
                usage = response.finished.usage
                print(f"\n[{usage.prompt_tokens} tokens in, {usage.completion_tokens} out]")


def reason_of(error: grpc.RpcError) -> str:
    """What a program branches on: the reason, and the field at fault."""
    status = rpc_status.from_call(error)
    found = error_details_pb2.ErrorInfo()
    for detail in status.details if status else ():
        if detail.Unpack(found):
            return f"{found.reason} {found.metadata.get('field', '')}".strip()
    return "no reason given"


if __name__ == "__main__":
    try:
        ask(
            os.environ.get("PAGEWIRE_ADDRESS", "127.0.0.1:50051"),
            sys.argv[1],
            float(sys.argv[2]) if len(sys.argv) > 2 else 0.0,
        )
    except grpc.RpcError as error:
        sys.exit(f"{error.code().name} ({reason_of(error)}): {error.details()}")
