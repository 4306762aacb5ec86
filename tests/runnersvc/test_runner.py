"""The runner without its wires: attach, results kept, refusals in their turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import structlog

from runnersvc.executor import Answer
from runnersvc.runner import Runner
from servicekit.errors import AlreadyExists, FailedPrecondition, Reason
from servicekit.plan import Attach, Attached, Failed, Refusal, Result
from tests.cachesvc.builders import describe, row_open
from tests.runnersvc.gated_memory import GatedMemory
from tests.runnersvc.plans import ANSWER, decode, prefill

A = "manager-1"


class Bench:
    """A runner with a model that can be held, and what its live stream was sent."""

    def __init__(self) -> None:
        self.memory = GatedMemory(describe())
        self.runner = Runner(self.memory, describe())
        self.sent: list[Answer] = []

    async def attach(self, **changes: Any) -> tuple[Attached, list[Result]]:
        request = Attach(1, A, "", None, "tiny")
        return await self.runner.attach(replace(request, **changes), self.sent.append)

    async def re_attach(self, last_result_plan_id: int | None) -> tuple[Attached, list[Result]]:
        self.runner.detach()
        self.sent.clear()
        return await self.attach(
            boot_id=self.runner.boot_id, last_result_plan_id=last_result_plan_id
        )


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    made.memory.gate.set()
    made.runner.stop()


def ids_of(results: list[Any]) -> list[int]:
    return [result.plan_id for result in results]


class TestAttach:
    async def test_a_fresh_runner_says_what_it_is_and_that_nothing_was_executed(
        self, bench: Bench
    ) -> None:
        attached, results = await bench.attach()
        assert attached == Attached(describe(), bench.runner.boot_id, 0, "")
        assert results == []
        assert len(bench.runner.boot_id) == 16

    async def test_another_protocol_version_is_refused(self, bench: Bench) -> None:
        with pytest.raises(FailedPrecondition) as caught:
            await bench.attach(protocol_version=2)
        assert caught.value.reason is Reason.PROTOCOL_VERSION
        assert caught.value.metadata == {"field": "attach.protocol_version"}

    async def test_another_model_is_refused_and_any_model_is_not(self, bench: Bench) -> None:
        with pytest.raises(FailedPrecondition) as caught:
            await bench.attach(model_fingerprint="another")
        assert caught.value.reason is Reason.FINGERPRINT_MISMATCH
        assert caught.value.metadata == {"field": "attach.model_fingerprint"}
        await bench.attach(model_fingerprint="")

    async def test_a_second_stream_is_refused_while_one_is_live(self, bench: Bench) -> None:
        await bench.attach()
        with pytest.raises(AlreadyExists) as caught:
            await bench.attach(manager_id="manager-2")
        assert caught.value.reason is Reason.STREAM_ALREADY_LIVE
        bench.runner.detach()
        await bench.attach(manager_id="manager-2")

    async def test_it_answers_when_every_accepted_plan_is_executed(self, bench: Bench) -> None:
        await bench.attach()
        bench.memory.gate.clear()
        bench.runner.take(prefill())
        bench.runner.take(decode(2, 3))
        bench.runner.detach()
        bench.memory.gate.set()
        attached, results = await bench.attach()
        assert (attached.last_executed, attached.last_manager_id) == (2, A)
        assert [one.sampled_ids.tolist() for one in results] == [[ANSWER[0]], [ANSWER[1]]]
        assert bench.sent == [], "they meet no stream, and are sent again once"


class TestKeptResults:
    async def bench_with_three_results(self, bench: Bench, acked_plan_id: int = 0) -> None:
        await bench.attach()
        bench.runner.take(prefill())
        bench.runner.take(decode(2, 3))
        await bench.runner.drained()
        bench.runner.take(decode(3, 4, acked_plan_id=acked_plan_id))
        await bench.runner.drained()
        assert ids_of(bench.sent) == [1, 2, 3]

    async def test_what_the_manager_does_not_hold_is_sent_again_oldest_first(
        self, bench: Bench
    ) -> None:
        await self.bench_with_three_results(bench)
        first = list(bench.sent)
        _, results = await bench.re_attach(last_result_plan_id=1)
        assert results == first[1:]

    async def test_they_are_kept_over_any_number_of_attaches(self, bench: Bench) -> None:
        await self.bench_with_three_results(bench)
        for _ in range(3):
            _, results = await bench.re_attach(last_result_plan_id=None)
            assert ids_of(results) == [1, 2, 3]

    async def test_a_plan_that_acknowledges_them_lets_them_go(self, bench: Bench) -> None:
        await self.bench_with_three_results(bench, acked_plan_id=2)
        _, results = await bench.re_attach(last_result_plan_id=None)
        assert ids_of(results) == [3]

    async def test_what_another_life_acknowledged_does_not_count(self, bench: Bench) -> None:
        await self.bench_with_three_results(bench)
        bench.runner.detach()
        _, results = await bench.attach(boot_id="another", last_result_plan_id=3)
        assert ids_of(results) == [1, 2, 3]


class TestRefusal:
    async def test_it_comes_after_earlier_results_and_later_plans_are_dropped(
        self, bench: Bench
    ) -> None:
        await bench.attach()
        bench.memory.gate.clear()
        bench.runner.take(prefill())
        bench.runner.take(decode(2, 9))
        bench.runner.take(decode(3, 4))
        bench.runner.take(decode(4, 5))
        bench.memory.gate.set()
        await bench.runner.drained()
        result, refusal = bench.sent
        assert result.plan_id == 1
        assert isinstance(refusal, Refusal)
        assert (refusal.plan_id, refusal.reason, refusal.last_accepted_plan_id) == (
            2,
            "CACHED_LEN",
            1,
        )
        assert refusal.named_rows == (0,)
        assert bench.runner.last_executed == 1

    async def test_a_plan_that_starts_over_with_the_next_number_ends_the_silence(
        self, bench: Bench
    ) -> None:
        await bench.attach()
        bench.runner.take(prefill(1, literal_ids=[1, 2, 99]))
        bench.runner.take(decode(1, 3))  # the right number, and no reset
        bench.runner.take(prefill(2))  # a reset, and another number
        bench.runner.take(prefill(1))
        bench.runner.take(decode(2, 3))
        await bench.runner.drained()
        assert [(type(answer), answer.plan_id) for answer in bench.sent] == [
            (Refusal, 1),
            (Result, 1),
            (Result, 2),
        ]

    async def test_a_bad_plan_that_starts_over_is_refused_too(self, bench: Bench) -> None:
        await bench.attach()
        for _ in range(2):
            bench.runner.take(prefill(1, literal_ids=[1, 2, 99]))
        await bench.runner.drained()
        assert [(type(answer), answer.plan_id) for answer in bench.sent] == [(Refusal, 1)] * 2

    async def test_an_attach_ends_the_silence(self, bench: Bench) -> None:
        await bench.attach()
        bench.runner.take(prefill())
        bench.runner.take(decode(2, 9))
        await bench.runner.drained()
        await bench.re_attach(last_result_plan_id=1)
        bench.runner.take(decode(2, 3))
        await bench.runner.drained()
        assert [(type(answer), answer.plan_id) for answer in bench.sent] == [(Result, 2)]

    async def test_it_is_not_kept_for_the_next_stream(self, bench: Bench) -> None:
        await bench.attach()
        bench.runner.take(decode(1, 3))
        bench.runner.detach()
        bench.sent.clear()
        _, results = await bench.attach()
        assert results == bench.sent == []

    async def test_an_acknowledgement_of_a_refused_plan_does_not_count(self, bench: Bench) -> None:
        await bench.attach()
        bench.runner.take(prefill())
        await bench.runner.drained()
        bench.runner.take(decode(2, 9, acked_plan_id=1))
        _, results = await bench.re_attach(last_result_plan_id=None)
        assert ids_of(results) == [1]


async def test_a_read_sees_the_device_after_every_plan_taken_before(bench: Bench) -> None:
    await bench.attach()
    bench.runner.take(prefill())
    bench.runner.take(decode(2, 3))
    values, last_executed = await bench.runner.read(lambda: sorted(bench.memory.kv))
    assert values == [0, 1, 2, 3]
    assert last_executed == 2


async def test_a_read_names_the_plan_it_was_read_after_while_later_ones_run(bench: Bench) -> None:
    await bench.attach()
    bench.memory.gate.clear()
    bench.runner.take(prefill())
    reading = asyncio.create_task(bench.runner.read(lambda: bench.memory.num_executed))
    await asyncio.sleep(0)  # it is in the queue, behind plan 1
    bench.runner.take(decode(2, 3))
    bench.memory.gate.set()
    assert await reading == (1, 1)
    await bench.runner.drained()
    assert bench.runner.last_executed == 2


async def test_a_plan_that_fails_is_told_and_sets_failed(bench: Bench) -> None:
    await bench.attach()
    bench.memory.break_at(1)
    bench.runner.take(prefill())
    await bench.runner.failed.wait()
    assert bench.runner.last_executed == 0
    (told,) = bench.sent
    assert isinstance(told, Failed)
    assert (told.plan_id, told.last_plan_id) == (1, 1)
    assert told.message == "RuntimeError: the device broke at plan 1"


async def test_each_stream_is_a_line_in_the_log_when_it_begins_and_when_it_ends(
    bench: Bench,
) -> None:
    with structlog.testing.capture_logs() as lines:
        await bench.attach()
        bench.runner.take(prefill())
        await bench.runner.drained()
        bench.memory.gate.clear()
        bench.runner.take(decode(2, 3))
        bench.runner.take(prefill(3))
        bench.runner.detach()
        bench.memory.gate.set()
        await bench.attach(manager_id="manager-2")
        bench.runner.detach()
    assert [tuple(line.values()) for line in lines] == [
        (A, 0, 0, "manager attached", "info"),
        (2, 3, "manager lost", "info"),
        ("manager-2", 3, 3, "manager attached", "info"),
        (0, 0, "manager lost", "info"),
    ]
    assert list(lines[0])[:3] == ["manager_id", "last_executed", "resent_results"]
    assert list(lines[1])[:2] == ["plans_in_flight", "prefill_tokens"]


async def test_last_executed_tells_whose_plan_it_was(bench: Bench) -> None:
    await bench.attach()
    bench.runner.take(prefill())
    bench.runner.detach()
    await bench.attach(manager_id="manager-2")
    bench.runner.take(prefill(2, manager_id="manager-2"))
    attached, _ = await bench.re_attach(last_result_plan_id=None)
    assert (attached.last_executed, attached.last_manager_id) == (2, "manager-2")


async def test_another_manager_that_attaches_takes_no_results_away(bench: Bench) -> None:
    """It names what it found, and drives nothing; the results are those of who drove."""
    await bench.attach()
    bench.runner.take(prefill(1))
    bench.runner.take(decode(2, 3))
    await bench.runner.drained()
    bench.runner.detach()
    for _ in range(2):
        await bench.attach(
            manager_id="another", boot_id=bench.runner.boot_id, last_result_plan_id=2
        )
        bench.runner.detach()
    _, results = await bench.re_attach(last_result_plan_id=0)
    assert ids_of(results) == [1, 2]


async def test_a_row_with_a_trace_is_a_line_in_the_debug_log_when_it_opens(bench: Bench) -> None:
    traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    await bench.attach()
    with structlog.testing.capture_logs() as lines:
        bench.runner.take(prefill(1, open_rows=(replace(row_open(0), traceparent=traceparent),)))
        bench.runner.take(decode(2, 3))
    assert lines == [
        {
            "event": "row opened",
            "log_level": "debug",
            "table_idx": 0,
            "plan_id": 1,
            "traceparent": traceparent,
        }
    ]
