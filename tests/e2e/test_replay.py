"""The plan stream of real services, recorded and executed once more."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from servicekit.health_check import is_serving
from servicekit.plan_history import read_history
from tests.e2e.system import System, free_port, greedy, ids_of, running
from tests.e2e.tiny_model import clear_prompt, make_tiny_model
from tests.servicekit.scrape import scraped

SETTINGS = {"num_pages": 15, "max_running_reqs": 4, "num_threads": 1}
PROMPT_LENS = (6, 17, 32, 40, 9)  # more than there are rows; they outgrow the pages too
NUM_TOKENS = 60


async def answers(system: System, prompts: list[list[int]]) -> list[list[int]]:
    async with system.client() as stub:
        calls = [stub.Generate(greedy(prompt_ids, NUM_TOKENS)) for prompt_ids in prompts]
        return list(await asyncio.gather(*map(ids_of, calls)))


def replayed(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", "replay", str(path), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@contextmanager
def fresh_runner(model_dir: Path, run_dir: Path, **settings: object) -> Iterator[str]:
    """The address of a runner that nobody drives."""
    system = System(model_dir, run_dir, **settings)
    system.start_one("runnersvc")
    try:
        while not is_serving(system.runner_address):
            assert system.processes["runnersvc"].poll() is None
        yield system.runner_address
    finally:
        system.stop()


def outcome(told: str) -> list[str]:
    """The lines that say what came: tokens, digest, verdict."""
    return told.splitlines()[-3:]


@pytest.fixture(scope="module")
def recorded(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five greedy answers in a pool too small for them; amid them the runner is killed."""
    run_dir = tmp_path_factory.mktemp("recorded")
    path = run_dir / "stream"
    pairs = [clear_prompt(tiny_dir, length, NUM_TOKENS) for length in PROMPT_LENS]
    prompts = [prompt for prompt, _ in pairs]

    async def record(system: System) -> None:
        answering = asyncio.create_task(answers(system, prompts))
        await system.running(4)
        system.kill("runnersvc")
        system.start_one("runnersvc")
        assert await answering == [expected for _, expected in pairs]
        await system.settled()

    with running(System(tiny_dir, run_dir, record=path, **SETTINGS)) as system:
        asyncio.run(record(system))
        system.processes["cachesvc"].send_signal(signal.SIGKILL)  # what was recorded is there
        system.processes["cachesvc"].wait()
    return path


def test_a_fresh_runner_and_a_fake_one_give_the_same_tokens_and_page_table(
    recorded: Path, tiny_dir: Path, tmp_path: Path
) -> None:
    with fresh_runner(tiny_dir, tmp_path, **SETTINGS) as address:
        real = replayed(recorded, "--runner", address)
        again = replayed(recorded, "--runner", address)
    fake = replayed(recorded)
    assert real.returncode == again.returncode == fake.returncode == 0, real.stdout + real.stderr
    assert outcome(real.stdout) == outcome(again.stdout) == outcome(fake.stdout)
    history = read_history(recorded, allow_cut=False)
    assert history.num_attaches == 2
    assert all(plan.table_digest is not None for plan in history.plans)
    assert outcome(real.stdout)[2] == "same as recorded"


def test_another_model_gives_other_tokens_and_is_refused_by_its_fingerprint(
    recorded: Path, tmp_path: Path
) -> None:
    other_dir = make_tiny_model(tmp_path / "other", seed=1)
    with fresh_runner(other_dir, tmp_path, **SETTINGS) as address:
        refused = replayed(recorded, "--runner", address)
    assert refused.returncode == 2
    assert "model_fingerprint" in refused.stderr
    assert refused.stdout == ""


def test_a_runner_with_another_pool_is_refused_with_both_values(
    recorded: Path, tiny_dir: Path, tmp_path: Path
) -> None:
    with fresh_runner(tiny_dir, tmp_path, **(SETTINGS | {"num_pages": 16})) as address:
        refused = replayed(recorded, "--runner", address)
    assert refused.returncode == 2
    assert "num_pages 15 and 16" in refused.stderr


def test_a_runner_that_a_manager_drives_is_refused_and_goes_on(
    recorded: Path, tiny: System, tiny_dir: Path
) -> None:
    refused = replayed(recorded, "--runner", tiny.runner_address)
    assert refused.returncode == 2
    assert "is driven by a manager" in refused.stderr
    prompt_ids, expected = clear_prompt(tiny_dir, 6, NUM_TOKENS)
    assert asyncio.run(answers(tiny, [prompt_ids])) == [expected]


async def test_the_manager_tells_prometheus_its_pages_while_nothing_runs(
    tiny_dir: Path, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{free_port()}"
    with running(System(tiny_dir, tmp_path, metrics=address, **SETTINGS)) as system:
        told = await scraped(address)
        assert told["pagewire_cache_num_pages"] == 15
        assert told["pagewire_cache_pages{state=free}"] == 15
        assert told["pagewire_cache_attached"] == 1
        prompt_ids, _ = clear_prompt(tiny_dir, 6, NUM_TOKENS)
        await answers(system, [prompt_ids])
        await system.settled()
        told = await scraped(address)
    assert told["pagewire_cache_ended_requests_total{outcome=finished}"] == 1
    assert told["pagewire_cache_sampled_tokens_total"] == NUM_TOKENS
    pages = [value for name, value in told.items() if name.startswith("pagewire_cache_pages")]
    assert sum(pages) == told["pagewire_cache_num_pages"]
