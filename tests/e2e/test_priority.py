"""What the manager makes of it is tested in tests/cachesvc; here it gets there."""

from __future__ import annotations

import grpc
import pytest
from pagewire.v1 import cache_pb2, cache_pb2_grpc

from tests.e2e.system import System, greedy, ids_of


@pytest.mark.parametrize("priority", [-100, 0, 7])
async def test_the_manager_explains_a_request_by_the_priority_that_its_client_gave(
    priority: int, tiny: System
) -> None:
    request_id = f"of class {priority}"
    async with tiny.client() as stub:
        request = greedy([1, 2, 3], 2, request_id=request_id, priority=priority)
        assert len(await ids_of(stub.Generate(request))) == 2
    async with grpc.aio.insecure_channel(tiny.cache_address) as channel:
        explained = await cache_pb2_grpc.CacheServiceStub(channel).Explain(
            cache_pb2.ExplainRequest(request_id=request_id)
        )
    assert explained.priority == priority
