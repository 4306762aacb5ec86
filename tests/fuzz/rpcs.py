"""What the gateway serves over gRPC, and a good request or two of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from pagewire.v1 import inference_pb2, model_pb2
from pagewire.v1.inference_pb2 import (
    ChatMessage,
    ChatMessages,
    StopParams,
    TokenIds,
    Tool,
    ToolCall,
)
from pagewire.v1.sampling_pb2 import SamplingParams
from smg_grpc_proto import vllm_engine_pb2

from tests.fuzz.wire import with_length

FEW = StopParams(max_tokens=6, strings=["never met"], token_ids=[7])
DRAWN = SamplingParams(temperature=0.7, top_p=0.9, seed=3, logprobs=2)
HELLO = ChatMessage(role="user", content="Hello wörld")
TOOL = Tool(name="add", description="Adds.", parameters_json='{"type": "object"}')
CALL = ChatMessage(
    role="assistant", tool_calls=[ToolCall(id="1", name="add", arguments_json='{"a": 1}')]
)
ANSWERED = ChatMessage(role="tool", content="2", name="add", tool_call_id="1")
VLLM_FEW = vllm_engine_pb2.SamplingParams(temperature=0.5, max_tokens=6, seed=3)
GOOD: Sequence[Message] = (
    inference_pb2.GenerateRequest(text="Hello", sampling=DRAWN, stop=FEW, request_id="fuzz-0"),
    inference_pb2.GenerateRequest(token_ids=TokenIds(ids=[5, 6, 7]), stop=FEW, n=3),
    inference_pb2.GenerateRequest(text="Hello", resume_token_ids=[40, 41], stop=FEW),
    inference_pb2.ChatRequest(messages=[HELLO, HELLO], stop=FEW, sampling=DRAWN),
    inference_pb2.ChatRequest(messages=[HELLO, CALL, ANSWERED], tools=[TOOL], stop=FEW),
    inference_pb2.CompleteRequest(text="Hello", stop=FEW, sampling=DRAWN, n=2),
    inference_pb2.TokenizeRequest(text="Hello", with_pieces=True),
    inference_pb2.TokenizeRequest(chat=ChatMessages(messages=[HELLO, CALL], tools=[TOOL])),
    inference_pb2.DetokenizeRequest(token_ids=[40, 41, 42]),
    inference_pb2.CancelRequest(request_ids=["fuzz-0", "fuzz-1"]),
    model_pb2.GetModelRequest(name="tiny"),
    vllm_engine_pb2.GenerateRequest(
        request_id="fuzz-1",
        tokenized=vllm_engine_pb2.TokenizedInput(input_ids=[5, 6, 7]),
        sampling_params=VLLM_FEW,
        stream=True,
    ),
    vllm_engine_pb2.GenerateRequest(text="Hello", sampling_params=VLLM_FEW),
    vllm_engine_pb2.AbortRequest(request_ids=["fuzz-1"]),
)
SERVICES = (
    inference_pb2.DESCRIPTOR.services_by_name["InferenceService"],
    model_pb2.DESCRIPTOR.services_by_name["ModelService"],
    vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"],
)
OFTEN = 6  # how much more often is asked what answers with tokens


class Rpc(NamedTuple):
    name: str
    path: str
    takes: Descriptor
    is_stream: bool
    good: Sequence[bytes]
    weight: int


def _good(takes: Descriptor) -> list[bytes]:
    found = [each.SerializeToString() for each in GOOD if each.DESCRIPTOR is takes]
    return found or [with_length(999, b"a field that there is none of")]


RPCS = tuple(
    Rpc(
        name=f"{service.name}/{method.name}",
        path=f"/{service.full_name}/{method.name}",
        takes=method.input_type,
        is_stream=method.server_streaming,
        good=_good(method.input_type),
        weight=OFTEN if method.name in ("Generate", "Chat", "Complete") else 1,
    )
    for service in SERVICES
    for method in service.methods
)
