"""ReadPageTable: what the device's page table holds, and what cannot be asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
from pagewire.v1 import runner_pb2 as pb

from servicekit.errors import (
    InvalidArgument,
    NotFound,
    PagewireError,
    Reason,
)
from servicekit.status import error_of
from tests.runnersvc.plans import prefill
from tests.runnersvc.service_bench import Bench, results, send, serving_bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with serving_bench() as made:
        yield made


class TestReadPageTable:
    async def test_it_reads_a_stretch_of_a_row(self, bench: Bench) -> None:
        call = await bench.attached()
        await send(call, prefill())
        await results(call, 1)
        read = await bench.stub.ReadPageTable(
            pb.ReadPageTableRequest(table_idx=1, start=3, num_positions=2)
        )
        assert (list(read.locs), read.last_executed) == ([35, 36], 1)

    async def test_without_a_number_it_reads_to_the_end_and_the_dummy_row_too(
        self, bench: Bench
    ) -> None:
        read = await bench.stub.ReadPageTable(pb.ReadPageTableRequest(table_idx=3, start=30))
        assert (list(read.locs), read.last_executed) == ([126, 127], 0)

    async def test_none_asked_for_is_none(self, bench: Bench) -> None:
        read = await bench.stub.ReadPageTable(pb.ReadPageTableRequest(start=32, num_positions=0))
        assert list(read.locs) == []

    @pytest.mark.parametrize("table_idx", [-1, 4])
    async def test_a_row_that_does_not_exist(self, bench: Bench, table_idx: int) -> None:
        error = await self.refused(bench, table_idx=table_idx)
        assert isinstance(error, NotFound)
        assert (error.reason, error.metadata) == (Reason.ROW_NOT_FOUND, {"field": "table_idx"})
        assert f"table_idx is {table_idx}" in error.message

    @pytest.mark.parametrize(
        ("start", "num_positions"), [(-1, 1), (33, None), (0, 33), (4, -1), (31, 2)]
    )
    async def test_positions_outside_the_row(
        self, bench: Bench, start: int, num_positions: int | None
    ) -> None:
        error = await self.refused(bench, start=start, num_positions=num_positions)
        assert isinstance(error, InvalidArgument)
        assert (error.reason, error.metadata) == (Reason.INVALID_FIELD, {"field": "start"})

    async def refused(self, bench: Bench, **fields: int | None) -> PagewireError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bench.stub.ReadPageTable(pb.ReadPageTableRequest(**fields))
        return error_of(caught.value)
