"""One thread executes plans in order and says what came of each."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from runnersvc.executor import Answer, AtOnce, Executed, Executor
from servicekit.plan import Failed, Int32Array, Plan, Refusal, Result
from servicekit.table_digest import table_digest
from tests.cachesvc.builders import ints, plan, row_open

REFUSAL = Refusal(9, "STORE", "a store", (0,), 8)


class Model:
    """Samples its plan's id; waits for `gate`; breaks at plan 13."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.executed: list[int] = []
        self.threads: set[int] = set()

    def launch(self, work: Plan) -> AtOnce:
        began = time.perf_counter()
        return AtOnce(self.execute(work), began)

    def execute(self, work: Plan) -> Int32Array:
        self.gate.wait()
        self.threads.add(threading.get_ident())
        if work.plan_id == 13:
            raise ValueError("unlucky")
        self.executed.append(work.plan_id)
        return ints(work.plan_id)

    def read_table(self) -> Int32Array:
        return ints(*range(100, 116)).reshape(4, 4)


@dataclass
class Bench:
    model: Model = field(default_factory=Model)
    published: queue.SimpleQueue[tuple[Plan | None, Answer]] = field(
        default_factory=queue.SimpleQueue
    )
    failures: queue.SimpleQueue[Failed] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self.executor = Executor(
            self.model,
            3,
            lambda work, answer: self.published.put((work, answer)),
            lambda failed, _: self.failures.put(failed),
        )

    def answers(self, count: int) -> list[Answer]:
        return [self.published.get(timeout=10)[1] for _ in range(count)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.model.gate.set()
    made.executor.stop()


def test_plans_are_executed_in_order_on_one_thread_of_its_own(bench: Bench) -> None:
    for plan_id in (1, 2, 3):
        bench.executor.put(plan(plan_id))
    answers = bench.answers(3)
    assert [answer.plan_id for answer in answers] == [1, 2, 3]
    assert [answer.sampled_ids.tolist() for answer in answers if isinstance(answer, Result)] == [
        [1],
        [2],
        [3],
    ]
    assert len(bench.model.threads) == 1
    assert threading.get_ident() not in bench.model.threads


def test_each_result_comes_with_its_plan(bench: Bench) -> None:
    sent = plan(5)
    bench.executor.put(sent)
    work, answer = bench.published.get(timeout=10)
    assert work is sent
    assert isinstance(answer, Result)
    assert answer.waited_us >= 0
    assert answer.device_us >= 0


def test_a_refusal_waits_for_its_turn(bench: Bench) -> None:
    bench.model.gate.clear()
    bench.executor.put(plan(8))
    bench.executor.put(REFUSAL)
    assert bench.published.empty()
    bench.model.gate.set()
    result, refusal = bench.answers(2)
    assert result.plan_id == 8
    assert refusal is REFUSAL


def test_a_digest_comes_with_a_plan_that_wants_one_and_counts_the_rows_as_it_left_them(
    bench: Bench,
) -> None:
    """Lengths follow every executed plan, whether or not it asks."""
    opens = plan(1, open_rows=(row_open(0), row_open(2)), **steps([0, 2], [0, 0], [3, 2]))
    decodes = plan(2, want_digest=True, **steps([2], [2], [1]))
    closes = plan(3, want_digest=True, close_rows=[2])
    resets = plan(4, want_digest=True, reset_rows=True, open_rows=(row_open(1),))
    for one in (opens, decodes, closes, resets):
        bench.executor.put(one)
    digests = [one.table_digest for one in bench.answers(4) if isinstance(one, Result)]
    page_table = bench.model.read_table()
    assert digests == [
        None,
        table_digest(page_table, ints(0, 2), ints(3, 3)),
        table_digest(page_table, ints(0), ints(3)),
        0,
    ]


def steps(rows: list[int], cached_lens: list[int], extend_lens: list[int]) -> dict[str, list[int]]:
    return {
        "step_rows": rows,
        "step_cached_lens": cached_lens,
        "step_extend_lens": extend_lens,
    }


def test_it_waits_for_no_reader(bench: Bench) -> None:
    for plan_id in range(20, 120):
        bench.executor.put(plan(plan_id))
    bench.executor.stop()
    assert bench.model.executed == list(range(20, 120))
    bench.executor = Executor(bench.model, 3, lambda *_: None, lambda *_: None)


class Device(Model):
    """Executes what was launched when `gate` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: queue.SimpleQueue[int] = queue.SimpleQueue()

    def launch(self, work: Plan) -> Device.Later:  # type: ignore[override]
        self.launched.put(work.plan_id)
        return Device.Later(self, work.plan_id)

    @dataclass
    class Later:
        device: Device
        plan_id: int

        def wait(self) -> Executed:
            self.device.gate.wait()
            if self.plan_id == 13:
                raise ValueError("unlucky")
            return Executed(ints(self.plan_id), device_us=70, gap_us=9, from_graph=True)


def test_the_next_plan_is_launched_while_the_device_is_at_the_one_before() -> None:
    device = Device()
    device.gate.clear()
    bench = Bench(device)
    for plan_id in (1, 2, 3):
        bench.executor.put(plan(plan_id))
    assert [device.launched.get(timeout=10) for _ in range(3)] == [1, 2, 3]
    assert bench.published.empty()
    device.gate.set()
    results = [answer for answer in bench.answers(3) if isinstance(answer, Result)]
    assert [result.plan_id for result in results] == [1, 2, 3]
    assert {(r.device_us, r.gap_us, r.from_graph) for r in results} == {(70, 9, True)}
    bench.executor.stop()


def test_a_failure_on_the_device_is_reported_after_the_results_before_it() -> None:
    """Plans launched meanwhile may be at fault as well."""
    device = Device()
    device.gate.clear()
    bench = Bench(device)
    for plan_id in (12, 13, 14):
        bench.executor.put(plan(plan_id))
    assert [device.launched.get(timeout=10) for _ in range(3)] == [12, 13, 14]
    device.gate.set()
    assert bench.failures.get(timeout=10) == Failed(13, "ValueError: unlucky", last_plan_id=14)
    bench.executor.put(plan(15))
    bench.executor.stop()
    assert [answer.plan_id for answer in bench.answers(1)] == [12]
    assert bench.published.empty()


async def test_a_call_runs_after_everything_put_before_and_on_the_same_thread(bench: Bench) -> None:
    for plan_id in (1, 2, 3):
        bench.executor.put(plan(plan_id))
    executed, thread = await bench.executor.call(
        lambda: (list(bench.model.executed), threading.get_ident())
    )
    assert executed == [1, 2, 3]
    assert {thread} == bench.model.threads


def test_after_a_failure_it_is_reported_and_nothing_more_is_executed(bench: Bench) -> None:
    for plan_id in (12, 13, 14):
        bench.executor.put(plan(plan_id))
    assert bench.failures.get(timeout=10) == Failed(13, "ValueError: unlucky", last_plan_id=13)
    bench.executor.stop()
    assert bench.model.executed == [12]
    assert bench.answers(1)[0].plan_id == 12
    assert bench.published.empty()


def test_stop_returns_when_what_was_put_before_is_executed(bench: Bench) -> None:
    bench.model.gate.clear()
    for plan_id in (1, 2):
        bench.executor.put(plan(plan_id))
    bench.model.gate.set()
    bench.executor.stop()
    assert bench.model.executed == [1, 2]
