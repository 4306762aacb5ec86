"""ModelService of a running system: what it says is what requests meet."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest
from pagewire.v1 import model_pb2, model_pb2_grpc

from servicekit.errors import Reason
from servicekit.status import error_of
from tests.e2e.system import System, running
from tests.e2e.tiny_model import END_IDS, MAX_SEQ_LEN, VOCAB_SIZE


async def listed(system: System) -> list[model_pb2.Model]:
    async with grpc.aio.insecure_channel(system.address) as channel:
        stub = model_pb2_grpc.ModelServiceStub(channel)
        models = list((await stub.ListModels(model_pb2.ListModelsRequest())).models)
        found = await stub.GetModel(model_pb2.GetModelRequest(name=models[0].name))
    assert found.model == models[0]
    return models


async def test_the_model_is_told_with_the_bounds_that_its_runner_has(
    tiny: System, tiny_dir: Path
) -> None:
    (model,) = await listed(tiny)
    assert 0 < model.created.seconds <= time.time()
    model.ClearField("created")
    assert model == model_pb2.Model(
        name=tiny_dir.name,
        model_type="llama",
        architecture="LlamaForCausalLM",
        stored_dtype="float32",
        vocab_size=VOCAB_SIZE,
        end_token_ids=END_IDS,
        has_chat_template=True,
        limits=model_pb2.ModelLimits(max_seq_len=MAX_SEQ_LEN, pool_tokens=15 * 16),
    )


async def test_another_model_is_not_found(tiny: System) -> None:
    async with grpc.aio.insecure_channel(tiny.address) as channel:
        stub = model_pb2_grpc.ModelServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetModel(model_pb2.GetModelRequest(name="gpt-17"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    error = error_of(caught.value)
    assert (error.reason, error.metadata["field"]) == (Reason.MODEL_NOT_FOUND, "name")


async def test_the_model_goes_by_the_name_it_is_served_under(
    tiny_dir: Path, tmp_path: Path
) -> None:
    settings = {"num_threads": 1, "max_seq_len": 128, "served_name": "org/small"}
    with running(System(tiny_dir, tmp_path, **settings)) as system:
        (model,) = await listed(system)
    assert (model.name, model.limits.max_seq_len) == ("org/small", 128)
