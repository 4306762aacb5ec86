"""Cases of kind 8, over both surfaces of a running system: what usage counts, prompts about as long
as they may be, and messages longer than that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from pagewire.v1 import inference_pb2 as pb

from servicekit.errors import Reason
from servicekit.model_dir import model_name
from servicekit.status import error_of
from tests.e2e.neighbour import undisturbed
from tests.e2e.system import System, greedy, ids_of, running
from tests.e2e.tiny_model import END_IDS, MAX_SEQ_LEN

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MAX_MESSAGE_BYTES = 4 * 2**20  # the default


@pytest.fixture(scope="module")
def wide(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """The tiny model with pages for several of the longest requests, and messages up to 4 MiB."""
    run_dir = tmp_path_factory.mktemp("wide")
    with running(System(tiny_dir, run_dir, num_threads=1, num_pages=64)) as system:
        yield system


def http_of(system: System) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=f"http://{system.http_address}", timeout=60)


def body_of(system: System, path: str, **fields: Any) -> dict[str, Any]:
    prompt: dict[str, Any] = {"prompt": [5, 6, 7]}
    if path == CHAT:
        prompt = {"messages": [{"role": "user", "content": "hello"}]}
    return {"model": model_name(system.model_dir)} | prompt | fields


def chunks_of(text: str) -> list[dict[str, Any]]:
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


KINDS: dict[str, dict[str, Any]] = {
    "to their length": {"ignore_eos": True, "max_tokens": 12},
    "to a stop string": {"stop": ["a", "e", "\n", "zz"], "max_tokens": 60},
    "of an end token alone": {"logit_bias": {str(END_IDS[0]): 100}, "max_tokens": 9},
}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
async def test_case_8_4_usage_is_the_sum_over_choices_streamed_or_not(
    path: str, n: int, kind: str, wide: System
) -> None:
    """vllm-project/vllm #8625: the last usage of a stream counted one choice, or one chunk."""
    asked = body_of(wide, path, n=n, seed=11, **KINDS[kind])
    async with http_of(wide) as http:
        whole = (await http.post(path, json=asked)).json()
        streaming = {"stream": True, "stream_options": {"include_usage": True}}
        response = await http.post(path, json=asked | streaming)
        alone = (await http.post(path, json=asked | {"n": 1})).json()
    *chunks, last = chunks_of(response.text)
    assert last["choices"] == []
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == whole["usage"][name]
    assert whole["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    assert whole["usage"]["completion_tokens"] >= n
    if kind == "to their length":
        assert whole["usage"]["completion_tokens"] == 12 * n
    if kind == "of an end token alone":
        assert whole["usage"]["completion_tokens"] == n
    for choice in whole["choices"]:
        mine = [chunk["choices"][0] for chunk in chunks]
        mine = [each for each in mine if each["index"] == choice["index"]]
        reasons = [each["finish_reason"] for each in mine]
        assert reasons == [None] * (len(mine) - 1) + [choice["finish_reason"]]
        if path == CHAT:
            assert mine[0]["delta"] == {"role": "assistant", "content": ""}
            text = "".join(each["delta"].get("content", "") for each in mine)
            assert text == choice["message"]["content"]
        else:
            text = "".join(each["text"] for each in mine)
            assert text == choice["text"]
        if kind == "of an end token alone":
            assert (text, choice["finish_reason"]) == ("", "stop")
    assert len(whole["choices"]) == n


@pytest.mark.parametrize("stream", [False, True])
async def test_case_8_5_a_prompt_is_served_up_to_its_bound_and_refused_beyond_with_numbers(
    wide: System, tiny_dir: Path, *, stream: bool
) -> None:
    """ggml-org/llama.cpp PR #16486: in a stream the error came inside of a 200."""
    async with undisturbed(wide, tiny_dir), http_of(wide) as http:

        async def asked(**fields: Any) -> httpx2.Response:
            return await http.post(
                COMPLETIONS, json=body_of(wide, COMPLETIONS, stream=stream, **fields)
            )

        served = await asked(prompt=[5] * (MAX_SEQ_LEN - 1))
        assert served.status_code == 200
        for prompt_len in (MAX_SEQ_LEN, MAX_SEQ_LEN + 1):
            check_too_long(await asked(prompt=[5] * prompt_len), "prompt", prompt_len, MAX_SEQ_LEN)
        too_many = await asked(prompt=[5] * 200, max_tokens=MAX_SEQ_LEN - 199)
        check_too_long(too_many, "max_tokens", 200, MAX_SEQ_LEN - 199, MAX_SEQ_LEN)
        fits = await asked(prompt=[5] * 200, max_tokens=MAX_SEQ_LEN - 200)
        assert fits.status_code == 200


def check_too_long(response: httpx2.Response, param: str, *numbers: int) -> None:
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
    assert error["param"] == param
    assert {str(number) for number in numbers} <= set(re.findall(r"\d+", error["message"]))


async def test_case_8_5_a_prompt_of_the_longest_length_is_served_over_grpc_and_no_longer_one(
    wide: System,
) -> None:
    async with wide.client() as stub:
        assert len(await ids_of(stub.Generate(greedy([5] * (MAX_SEQ_LEN - 1), 1)))) == 1
        for prompt_len in (MAX_SEQ_LEN, MAX_SEQ_LEN + 1):
            error = await refusal(ids_of(stub.Generate(greedy([5] * prompt_len, 1))))
            assert error.code_name == "INVALID_ARGUMENT"
            assert str(prompt_len) in error.message
            assert str(MAX_SEQ_LEN) in error.message


async def refusal(call: Any) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_of(caught.value)


async def test_case_8_7_a_text_below_the_bound_is_too_many_tokens_and_above_it_too_many_bytes(
    wide: System, tiny_dir: Path
) -> None:
    """NVIDIA/TensorRT-LLM PR #13519: a default of 4 MiB ended long prompts, and no bound at all let
    one client fill memory. Texts of 3.9, 4.1 and 64 MB.
    """
    async with undisturbed(wide, tiny_dir), http_of(wide) as http, wide.client() as stub:
        long = await http.post(COMPLETIONS, json=body_of(wide, COMPLETIONS, prompt="x" * 3_900_000))
        check_too_long(long, "prompt", 3_900_000, MAX_SEQ_LEN)
        error = await refusal(stub.Complete(pb.CompleteRequest(text="x" * 3_900_000)))
        assert error.reason is Reason.PROMPT_TOO_LONG
        most_bytes = most_memory_bytes(wide)
        for num_bytes in (4_300_000, 64_000_000):
            text = "x" * num_bytes
            large = await http.post(COMPLETIONS, json=body_of(wide, COMPLETIONS, prompt=text))
            assert large.status_code == 413
            assert str(MAX_MESSAGE_BYTES) in large.json()["error"]["message"]
            error = await refusal(stub.Complete(pb.CompleteRequest(text=text)))
            assert error.code_name == "RESOURCE_EXHAUSTED"
        assert most_memory_bytes(wide) - most_bytes < 32_000_000


async def test_case_8_7_ids_are_bounded_as_texts_are(wide: System, tiny_dir: Path) -> None:
    """1.2 million of them: fewer bytes than the bound in JSON, more in four bytes each."""
    ids = [5] * 1_200_000
    async with undisturbed(wide, tiny_dir), http_of(wide) as http, wide.client() as stub:
        body = json.dumps(body_of(wide, COMPLETIONS, prompt=ids), separators=(",", ":"))
        assert len(body) < MAX_MESSAGE_BYTES
        headers = {"content-type": "application/json"}
        long = await http.post(COMPLETIONS, content=body, headers=headers)
        check_too_long(long, "prompt", len(ids), MAX_SEQ_LEN)
        error = await refusal(stub.Complete(pb.CompleteRequest(token_ids=pb.TokenIds(ids=ids))))
        assert (error.code_name, error.reason) == ("RESOURCE_EXHAUSTED", Reason.MESSAGE_TOO_LARGE)
        assert error.metadata == {"field": "CompleteRequest"}


def most_memory_bytes(system: System) -> int:
    """That the gateway ever held."""
    status = Path(f"/proc/{system.processes['gateway'].pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


async def test_case_8_3_a_name_is_free_with_the_end_that_its_client_reads(wide: System) -> None:
    """vllm-project/vllm #10583: X finishes and is used again at once, a hundred times over."""
    async with wide.client() as stub:
        for nth in range(100):
            call = stub.Generate(greedy([5, 6, nth], 2, request_id="X"))
            while not (await call.read()).HasField("finished"):
                pass
            assert await call.read() is grpc.aio.EOF
    stats = await wide.settled()
    assert stats.free_pages + stats.evictable_pages == stats.num_pages


async def test_case_8_1_a_stream_of_choices_is_left_with_all_of_them(
    wide: System, tiny_dir: Path
) -> None:
    """sgl-project/mini-sglang #15: nobody told the scheduler that the reader left."""
    before = (await wide.settled()).cancelled_total
    asked = body_of(wide, COMPLETIONS, n=3, stream=True, max_tokens=200, ignore_eos=True)
    async with (
        undisturbed(wide, tiny_dir),
        http_of(wide) as http,
        http.stream("POST", COMPLETIONS, json=asked) as response,
    ):
        lines = response.aiter_lines()
        for _ in range(3):
            await anext(lines)
    assert (await wide.settled()).cancelled_total == before + 3
