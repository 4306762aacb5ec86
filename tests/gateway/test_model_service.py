"""ModelService over a manager that the test plays."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from pagewire.v1 import cache_pb2
from pagewire.v1 import model_pb2 as pb

from servicekit.errors import NotFound, Reason
from servicekit.status import error_of
from tests.gateway.front import CREATED_S, Front


async def listed(front: Front) -> pb.Model:
    (model,) = (await front.models.ListModels(pb.ListModelsRequest())).models
    return model


async def test_the_model_is_listed_with_the_limits_that_the_manager_told(front: Front) -> None:
    model = await listed(front)
    assert (model.name, model.vocab_size, list(model.end_token_ids)) == ("tiny", 1000, [1])
    assert model.created.seconds == CREATED_S
    assert model.has_chat_template
    assert model.limits == pb.ModelLimits(max_seq_len=64, pool_tokens=64)


@pytest.mark.parametrize("name", ["tiny", ""])
async def test_a_model_is_found_by_its_name_or_by_none(name: str, front: Front) -> None:
    found = await front.models.GetModel(pb.GetModelRequest(name=name))
    assert found.model == await listed(front)


async def test_another_name_is_not_found(front: Front) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await front.models.GetModel(pb.GetModelRequest(name="huge"))
    error = error_of(caught.value)
    assert isinstance(error, NotFound)
    assert (error.reason, error.metadata) == (Reason.MODEL_NOT_FOUND, {"field": "name"})


async def test_limits_are_those_of_the_runner_seen_last(front: Front) -> None:
    """A runner that goes takes none of them along; one that comes brings its own."""
    gone = cache_pb2.Opened(serving=False)
    other = cache_pb2.Opened(
        serving=True, limits=cache_pb2.Limits(max_seq_len=32, vocab_size=1000, pool_tokens=480)
    )
    front.cache.responses.put_nowait(cache_pb2.SessionResponse(opened=gone))
    front.cache.responses.put_nowait(cache_pb2.SessionResponse(opened=other))
    seen = [(await listed(front)).limits]
    async with asyncio.timeout(10):
        while seen[-1].max_seq_len != 32:
            seen.append((await listed(front)).limits)
    assert {(limits.max_seq_len, limits.pool_tokens) for limits in seen} <= {(64, 64), (32, 480)}
