"""The manager's journal with real processes: taken over, void, or another's; never served wrong."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from servicekit.health_check import is_serving
from tests.e2e.neighbour import undisturbed
from tests.e2e.system import System, greedy, ids_of, running
from tests.e2e.test_lifecycle import until
from tests.e2e.tiny_model import clear_prompt, make_tiny_model


async def test_cached_pages_outlive_their_manager_and_no_wrong_journal_is_believed(
    tiny_dir: Path, tmp_path: Path
) -> None:
    """One system, one death after the other: with its journal, with one that was changed on the
    disk, with the copy of an earlier one, and with none.
    """
    prompt_ids, expected = clear_prompt(tiny_dir, 70, 20)
    journal = tmp_path / "journal"
    with running(System(tiny_dir, tmp_path, num_threads=1, journal=journal)) as system:

        async def cached_after_a_restart() -> int:
            system.start_one("cachesvc")
            await asyncio.to_thread(system.wait_serving, system.address)
            async with system.client() as stub:
                call = stub.Generate(greedy(prompt_ids, 20))
                responses = [response async for response in call]
            assert [i for one in responses for i in one.delta.token_ids] == expected
            return responses[-1].finished.usage.cached_tokens

        async with system.client() as stub:
            assert await ids_of(stub.Generate(greedy(prompt_ids, 20))) == expected
        early = journal.read_bytes()

        system.kill("cachesvc")
        assert await cached_after_a_restart() == 64  # all but the last page, in part
        stats = system.stats()
        assert stats.adopted_pages_total == 89 // 16  # of the answer's last token there is no K, V
        assert stats.prompt_tokens_total == 6

        system.kill("cachesvc")
        whole = journal.read_bytes()
        journal.write_bytes(whole[:90] + bytes([whole[90] ^ 1]) + whole[91:])
        assert await cached_after_a_restart() == 0
        assert "journal void" in system.log_of("cachesvc")

        system.kill("cachesvc")
        journal.write_bytes(early)
        assert await cached_after_a_restart() == 0
        assert "driven last by another manager" in system.log_of("cachesvc")

        system.kill("cachesvc")
        journal.unlink()
        assert await cached_after_a_restart() == 0
        assert (await system.settled()).refused_total == 0


async def test_a_second_manager_gets_neither_the_journal_nor_the_runner(
    tiny_dir: Path, tmp_path: Path
) -> None:
    journal, other = tmp_path / "journal", tmp_path / "other"
    command = [sys.executable, "-m", "cachesvc", "--listen", f"unix:{other}/cache.sock"]
    with running(System(tiny_dir, tmp_path, num_threads=1, journal=journal)) as system:
        command += ["--runner", system.runner_address]
        async with undisturbed(system, tiny_dir):
            second = await asyncio.to_thread(
                lambda: subprocess.run(
                    [*command, "--journal", str(journal)],
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
            )
            assert second.returncode == 2
            assert f"journal {journal} is in use by another process" in second.stderr
            await asyncio.to_thread(stays_without_a_runner, command, f"unix:{other}/cache.sock")
        assert system.stats().attached_total == 1


def stays_without_a_runner(command: list[str], address: str) -> None:
    """The manager asks for the runner again and again, and is no manager meanwhile."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as manager:
        assert manager.stderr is not None
        line = ""
        while "runner not attached" not in line:
            line = manager.stderr.readline()
        assert "another Execute stream is live" in line
        assert not is_serving(address)
        manager.terminate()
        assert manager.wait() == 0


async def test_a_runner_of_another_model_is_not_served_from(tiny_dir: Path, tmp_path: Path) -> None:
    """It took the place of the one that died: requests wait until one of their model comes."""
    other_dir = make_tiny_model(tmp_path / "other", seed=1)
    prompt_ids, expected = clear_prompt(tiny_dir, 6, 100)
    with running(System(tiny_dir, tmp_path, num_threads=1)) as system:
        async with system.client() as stub:
            call = stub.Generate(greedy(prompt_ids, 100))
            first = [await call.read() for _ in range(5)]
            await asyncio.to_thread(system.kill, "runnersvc")
            system.model_dir = other_dir
            system.start_one("runnersvc")
            await asyncio.to_thread(until, lambda: "serves" in system.log_of("cachesvc"))
            assert not is_serving(system.address)
            await asyncio.to_thread(system.kill, "runnersvc")
            system.model_dir = tiny_dir
            system.start_one("runnersvc")
            rest = await ids_of(call)
    assert [i for response in first for i in response.delta.token_ids] + rest == expected
