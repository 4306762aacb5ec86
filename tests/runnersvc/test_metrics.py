"""The runner's numbers are those of its life so far."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from runnersvc.fake_model import FakeModel, ScriptedTokens
from runnersvc.metrics import collected
from runnersvc.runner import Runner
from servicekit.plan import Attach
from tests.cachesvc.builders import describe
from tests.runnersvc.plans import decode, prefill


@pytest.fixture
async def runner() -> AsyncIterator[Runner]:
    made = Runner(FakeModel(describe(), ScriptedTokens([5])), describe())
    yield made
    made.stop()


def numbers(runner: Runner | None) -> dict[str, float]:
    return {
        sample.name.removeprefix("pagewire_runner_")
        + "".join(sample.labels.values() if "info" not in sample.name else ()): sample.value
        for family in collected(runner)
        for sample in family.samples
    }


async def attach(runner: Runner) -> None:
    await runner.attach(Attach(1, "manager-1", "", None, ""), lambda _: None)


def test_while_the_model_loads_there_is_nothing_to_tell() -> None:
    assert numbers(None) == {}


async def test_a_runner_that_never_stepped_tells_what_it_is(runner: Runner) -> None:
    told = numbers(runner)
    assert (told["num_pages"], told["page_size"], told["info"]) == (8, 4, 1)
    (about, *_) = collected(runner)
    assert about.samples[0].labels == {
        "boot_id": runner.boot_id,
        "fingerprint": "tiny",
        "dtype": "float32",
    }
    assert told["live_rows"] == told["executed_plans_total"] == told["attaches_total"] == 0


async def test_it_counts_plans_tokens_rows_and_results(runner: Runner) -> None:
    await attach(runner)
    runner.take(prefill())
    runner.take(decode(2, 3))
    await runner.drained()
    told = numbers(runner)
    assert (told["executed_plans_total"], told["sampled_tokens_total"]) == (2, 2)
    assert (told["eager_decode_steps_total"], told["graph_steps_total"]) == (1, 0)
    assert (told["live_rows"], told["kept_results"], told["last_executed"]) == (1, 2, 2)
    runner.take(decode(3, 4, acked_plan_id=2))
    await runner.drained()
    assert numbers(runner)["kept_results"] == 1


async def test_results_sent_again_are_counted(runner: Runner) -> None:
    await attach(runner)
    runner.take(prefill())
    runner.take(decode(2, 3))
    runner.detach()
    await attach(runner)
    told = numbers(runner)
    assert (told["resent_results_total"], told["attaches_total"]) == (2, 2)


async def test_refused_plans_are_counted_by_reason(runner: Runner) -> None:
    await attach(runner)
    for _ in range(2):
        runner.take(prefill(literal_ids=[1, 2, 99]))
    runner.take(prefill())
    await runner.drained()
    told = numbers(runner)
    assert told["refused_plans_totalVOCAB"] == 2
    assert (told["executed_plans_total"], told["attaches_total"]) == (1, 1)


async def test_its_names_are_distinct_and_prometheus_takes_them(runner: Runner) -> None:
    class Once:
        def collect(self):
            return collected(runner)

    registry = CollectorRegistry(auto_describe=True)
    registry.register(Once())
    assert registry.get_sample_value("pagewire_runner_num_pages") == 8
