"""What a router asks before it sends requests, and between them."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import common_pb2
from transformers import AutoTokenizer

from gateway.config import GatewayConfig
from gateway.smg.about import about_model
from gateway.smg.extra import check_installed
from servicekit.errors import SetupError, Unimplemented
from servicekit.status import error_of
from tests.gateway.fake_cache import opened
from tests.gateway.smg.worker import Worker


async def test_the_model_is_described_with_the_limits_of_its_runner(worker: Worker) -> None:
    about = await worker.stub.GetModelInfo(pb.GetModelInfoRequest())
    tokenizer = worker.front.tokenizer
    assert about == pb.GetModelInfoResponse(
        model_path="/dev/null",
        tokenizer_path="/dev/null",
        served_model_name="tiny",
        is_generation=True,
        max_context_length=64,
        vocab_size=1000,
        eos_token_ids=sorted(tokenizer.end_token_ids),
        bos_token_id=tokenizer.bos_token_id,
    )


class Alone:
    """A chain whose runner never came."""

    serving = False
    limits = None


async def test_a_router_that_comes_before_the_runner_hears_all_but_the_limits(
    worker: Worker,
) -> None:
    """Smg asks once: an error made it serve a model called "unknown" for as long as it ran."""
    about = about_model(replace(worker.front, chain=Alone()))
    assert (about.served_model_name, about.max_context_length) == ("tiny", 0)


async def test_the_server_counts_its_live_answers(worker: Worker) -> None:
    call = worker.stub.Generate(pb.GenerateRequest(text="Hi"))
    await worker.cache.next("submit")
    about = await worker.stub.GetServerInfo(pb.GetServerInfoRequest())
    call.cancel()
    assert (about.server_type, about.active_requests) == ("vllm-grpc", 1)
    assert about.data_parallel_size == 1
    assert about.uptime_seconds > 0


async def test_health_follows_the_runner(worker: Worker) -> None:
    assert (await worker.stub.HealthCheck(pb.HealthCheckRequest())).healthy
    worker.cache.responses.put_nowait(opened(serving=False))
    while (health := await worker.stub.HealthCheck(pb.HealthCheckRequest())).healthy:
        pass
    assert health.message == "cachesvc or a runner is not there"


async def test_loads_are_the_managers_counts(worker: Worker) -> None:
    loads = await worker.stub.GetLoads(pb.GetLoadsRequest(include=["core"]))
    assert (loads.dp_rank_count, len(loads.loads)) == (1, 1)
    assert loads.loads[0] == pb.SchedulerLoad(
        num_running_reqs=3,
        num_waiting_reqs=2,
        num_total_reqs=5,
        num_used_tokens=20,
        max_total_num_tokens=40,
        token_usage=0.5,
        utilization=0.5,
        cache_hit_rate=0.25,
    )


async def test_a_load_of_another_rank_is_refused(worker: Worker) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.stub.GetLoads(pb.GetLoadsRequest(dp_rank=1))
    assert error_of(caught.value).metadata == {"field": "dp_rank"}


async def test_the_tokenizer_comes_as_an_archive_that_loads(worker: Worker, tmp_path: Any) -> None:
    (worker.model_dir / "model.safetensors").write_bytes(b"weights")
    (worker.model_dir / "modeling.py").write_text("raise SystemExit")
    request = common_pb2.GetTokenizerRequest()
    chunks = [chunk async for chunk in worker.stub.GetTokenizer(request)]
    archive = b"".join(chunk.data for chunk in chunks)
    assert [chunk.sha256 for chunk in chunks[:-1]] == [""] * (len(chunks) - 1)
    assert chunks[-1].sha256 == hashlib.sha256(archive).hexdigest()
    with zipfile.ZipFile(io.BytesIO(archive)) as opened_archive:
        assert opened_archive.testzip() is None
        names = set(opened_archive.namelist())
        opened_archive.extractall(tmp_path / "copy")
    assert names == {
        "chat_template.jinja",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    copy = AutoTokenizer.from_pretrained(tmp_path / "copy")
    assert copy.encode("Hello") == worker.front.tokenizer.encode("Hello")
    again = [chunk async for chunk in worker.stub.GetTokenizer(request)]
    assert again == chunks


@pytest.mark.parametrize(
    ("rpc", "request_kind"),
    [
        ("Embed", pb.EmbedRequest),
        ("FlushCache", common_pb2.FlushCacheRequest),
        ("StartProfile", common_pb2.StartProfileRequest),
        ("StopProfile", common_pb2.StopProfileRequest),
        ("SubscribeKvEvents", common_pb2.SubscribeKvEventsRequest),
    ],
)
async def test_what_is_not_served_says_so(worker: Worker, rpc: str, request_kind: Any) -> None:
    call = getattr(worker.stub, rpc)(request_kind())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call.read() if rpc == "SubscribeKvEvents" else call)
    assert isinstance(error_of(caught.value), Unimplemented)
    assert caught.value.details().startswith(f"{rpc} is not served: ")


async def test_who_wants_the_cache_flushed_is_sent_to_where_that_is_done(worker: Worker) -> None:
    """The words named cachesvc's own address, a socket that nobody is told of."""
    with pytest.raises(grpc.aio.AioRpcError, match="AdminService/FlushCache at --admin"):
        await worker.stub.FlushCache(common_pb2.FlushCacheRequest())


def test_without_the_extra_it_cannot_be_asked_for() -> None:
    with pytest.raises(SetupError, match=r"^--smg needs the extra: .*pagewire\[smg\]"):
        check_installed("no_package_of_this_name")
    assert GatewayConfig(listen="a", cache="c", model="m", smg=True).smg


def test_it_is_not_offered_beside_keys(tmp_path: Path) -> None:
    """The router's first call has none, and it then gave the worker up without a word of keys."""
    with pytest.raises(SetupError, match="--smg beside --api-key-file"):
        GatewayConfig(listen="a", cache="c", model="m", smg=True, api_key_file=str(tmp_path))
