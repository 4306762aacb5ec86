"""A client that nobody here wrote: the grpcurl binary against the running system."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.e2e.system import System

CHAT = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "sampling": {"temperature": 0},
    "stop": {"max_tokens": 32},
}


def grpcurl(path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [path, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def json_stream(text: str) -> list[dict]:
    decoder, messages, at = json.JSONDecoder(), [], 0
    while (at := next((i for i in range(at, len(text)) if not text[i].isspace()), len(text))) < len(
        text
    ):
        message, at = decoder.raw_decode(text, at)
        messages.append(message)
    return messages


def test_list_names_every_service(smollm2: System, grpcurl_path: str) -> None:
    listed = grpcurl(grpcurl_path, "-plaintext", smollm2.address, "list")
    assert listed.stdout.split() == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "pagewire.v1.InferenceService",
        "pagewire.v1.ModelService",
    ]


@pytest.mark.parametrize(
    ("service", "rpcs"),
    [
        ("InferenceService", ["Generate", "Chat", "Complete", "Tokenize", "Detokenize", "Cancel"]),
        ("ModelService", ["ListModels", "GetModel"]),
    ],
)
def test_describe_shows_the_rpcs(
    service: str, rpcs: list[str], smollm2: System, grpcurl_path: str
) -> None:
    described = grpcurl(
        grpcurl_path, "-plaintext", smollm2.address, "describe", f"pagewire.v1.{service}"
    )
    for name in rpcs:
        streams = "stream " if name in ("Generate", "Chat") else ""
        rpc = (
            f"rpc {name} ( .pagewire.v1.{name}Request ) "
            f"returns ( {streams}.pagewire.v1.{name}Response )"
        )
        assert rpc in described.stdout


def test_health_is_serving_for_the_server_and_for_each_service(
    smollm2: System, grpcurl_path: str
) -> None:
    for service in ("", "pagewire.v1.InferenceService", "pagewire.v1.ModelService"):
        checked = grpcurl(
            grpcurl_path,
            "-plaintext",
            "-d",
            json.dumps({"service": service}),
            smollm2.address,
            "grpc.health.v1.Health/Check",
        )
        assert json.loads(checked.stdout) == {"status": "SERVING"}


def test_the_inner_services_answer_reflection_and_health_on_their_sockets(
    smollm2: System, grpcurl_path: str
) -> None:
    for address, service in (
        (smollm2.cache_address, "pagewire.v1.CacheService"),
        (smollm2.runner_address, "pagewire.v1.RunnerService"),
    ):
        path = address.removeprefix("unix:")
        assert service in grpcurl(grpcurl_path, "-plaintext", "-unix", path, "list").stdout
        checked = grpcurl(grpcurl_path, "-plaintext", "-unix", path, "grpc.health.v1.Health/Check")
        assert json.loads(checked.stdout) == {"status": "SERVING"}


def test_chat_streams_started_deltas_and_finished(smollm2: System, grpcurl_path: str) -> None:
    called = grpcurl(
        grpcurl_path,
        "-plaintext",
        "-d",
        json.dumps(CHAT),
        smollm2.address,
        "pagewire.v1.InferenceService/Chat",
    )
    first, *deltas, last = json_stream(called.stdout)
    assert first["started"]["prompt_tokens"] == 37
    assert "".join(delta["delta"].get("text", "") for delta in deltas) == (
        "The capital of France is Paris."
    )
    assert last["finished"]["reason"] == "FINISH_REASON_STOP"
    assert last["finished"]["end_token_id"] == 2
    usage = last["finished"]["usage"]  # and how much was cached, if another test asked the same
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (37, 8)


def test_an_invalid_call_shows_its_error_info(smollm2: System, grpcurl_path: str) -> None:
    called = grpcurl(
        grpcurl_path,
        "-plaintext",
        "-d",
        json.dumps({**CHAT, "sampling": {"temperature": -1}}),
        smollm2.address,
        "pagewire.v1.InferenceService/Chat",
    )
    assert called.returncode != 0
    assert "Code: InvalidArgument" in called.stderr
    assert "sampling.temperature is -1" in called.stderr
    assert '"reason":"INVALID_FIELD"' in called.stderr
    assert '"domain":"pagewire"' in called.stderr
    assert '"field":"sampling.temperature"' in called.stderr


@pytest.mark.parametrize("field", ["prompt_logprobs", "echo", "logprobs"])
def test_case_2_6_logprobs_of_a_prompt_are_refused_by_name(
    field: str, smollm2: System, grpcurl_path: str
) -> None:
    """vllm-project/vllm issue #3251: tokens that are cached have no logits, so prompt logprobs
    failed, or were what lay in memory. Here there are none, and nobody is left to think so.
    """
    called = grpcurl(
        grpcurl_path,
        "-plaintext",
        "-d",
        json.dumps({**CHAT, field: 1}),
        smollm2.address,
        "pagewire.v1.InferenceService/Chat",
    )
    assert called.returncode != 0
    assert f"pagewire.v1.ChatRequest has no known field named {field}" in called.stderr
    assert called.stdout == ""
