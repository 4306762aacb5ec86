"""Replaying a recorded plan stream: the same comes out, or the first difference is named."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pagewire.v1 import runner_pb2 as pb
from pagewire.v1 import runner_pb2_grpc

from gateway.cli import main
from gateway.replay import Outcome, replay
from gateway.replay_command import run
from runnersvc.fake_model import FakeModel, ScriptedTokens
from runnersvc.runner import Runner
from runnersvc.service import RunnerService
from servicekit.errors import SetupError
from servicekit.plan_history import read_history
from servicekit.table_digest import table_digest
from tests.cachesvc.builders import describe, ints
from tests.cachesvc.rpc import channel_to, served
from tests.runnersvc.gated_memory import GatedMemory
from tests.runnersvc.plans import decode, prefill
from tests.servicekit.recorded import ATTACHED, attached, refusal, result, write

ADD = runner_pb2_grpc.add_RunnerServiceServicer_to_server
SCRIPT = [5, 6, 7]  # position 3 samples 5
TABLE = np.arange(24, dtype=np.int32).reshape(1, 24)


def digest(length: int) -> int:
    """Of row 0 with so many tokens, on pages 0 and 1."""
    return table_digest(TABLE, ints(0), ints(length))


DIGESTS = hashlib.sha256(
    b"".join(digest(length).to_bytes(8, "little") for length in (3, 4, 5))
).hexdigest()


@asynccontextmanager
async def runner(**changes: Any) -> AsyncIterator[str]:
    """The address of a runner of the tiny kind that samples SCRIPT."""
    description = describe(**changes)
    service = RunnerService()
    made = Runner(FakeModel(description, ScriptedTokens(SCRIPT)), description)
    service.load(made)
    async with served(ADD, service) as address:
        yield address
    made.stop()


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Three plans of one row with their digests, and one that was never answered."""
    return write(
        tmp_path / "stream",
        *(ATTACHED, prefill(1), decode(2, 3)),
        *(result(1, 5, table_digest=digest(3)), decode(3, 4)),
        *(result(2, 6, table_digest=digest(4)), result(3, 7, table_digest=digest(5)), decode(4, 5)),
    )


async def replayed(path: Path, address: str) -> Outcome:
    return await replay(read_history(path, allow_cut=False), address)


async def test_every_plan_with_a_result_is_executed_and_compared(recording: Path) -> None:
    async with runner() as address:
        outcome = await replayed(recording, address)
    ids = np.array([5, 6, 7], dtype="<i4").tobytes()
    assert outcome == Outcome(3, 3, hashlib.sha256(ids).hexdigest(), DIGESTS, digest(5), "")


async def test_a_runner_that_executed_plans_before_will_do(recording: Path) -> None:
    """Its rows are open, and it kept a result for whoever was there before."""
    async with runner() as address:
        first = await replayed(recording, address)
        assert await replayed(recording, address) == first


async def test_restarts_refusals_and_resent_results_replay_as_one_sequence(tmp_path: Path) -> None:
    path = write(
        tmp_path / "stream",
        *(ATTACHED, prefill(1), decode(2, 9), result(1, 5), refusal(2), prefill(2), result(2, 5)),
        *(attached(last_executed=2, last_manager_id="manager-1"), result(2, 5)),
        *(decode(3, 3), result(3, 6), decode(4, 4)),
        *(attached("boot-2"), prefill(1), result(1, 5), decode(2, 3), result(2, 6)),
    )
    async with runner() as address:
        outcome = await replayed(path, address)
    assert (outcome.num_results, outcome.num_tokens, outcome.difference) == (5, 5, "")


@pytest.mark.parametrize(
    ("records", "difference"),
    [
        ((prefill(1), result(1, 9)), "plan 1, row 0: expected token 9, got 5"),
        ((prefill(1), result(1)), "plan 1: expected 0 tokens, got 1"),
        (
            (prefill(1), result(1, 5, table_digest=1)),
            f"plan 1: expected page table {1:016x}, got {digest(3):016x}",
        ),
        (
            (prefill(1), result(1, 5), decode(2, 7), result(2, 6)),
            "plan 2: executed when recorded, now refused: cached_len 7 of a row with length 3",
        ),
    ],
)
async def test_the_first_difference_is_named_and_ends_the_replay(
    tmp_path: Path, records: tuple[Any, ...], difference: str
) -> None:
    later = (decode(8, 3), result(8, 1))
    path = write(tmp_path / "stream", ATTACHED, *records, *later)
    async with runner() as address:
        outcome = await replayed(path, address)
        assert outcome.difference == difference


async def test_a_plan_that_the_runner_fails_at_is_a_difference(recording: Path) -> None:
    memory = GatedMemory(describe())
    memory.break_at(1)
    service = RunnerService()
    made = Runner(memory, describe())
    service.load(made)
    async with served(ADD, service) as address:
        outcome = await replayed(recording, address)
    made.stop()
    assert outcome.difference == (
        "plan 1: executed when recorded, now the runner fails: RuntimeError: the device broke at "
        "plan 1"
    )


async def test_a_runner_of_another_kind_is_refused_with_both_values(recording: Path) -> None:
    async with runner(num_pages=9, num_rows=2) as address:
        with pytest.raises(SetupError, match="recorded one: num_pages 8 and 9, num_rows 3 and 2"):
            await replayed(recording, address)


async def test_another_model_is_refused_with_both_fingerprints(recording: Path) -> None:
    async with runner(model_fingerprint="other") as address:
        with pytest.raises(SetupError, match="fingerprint is tiny; this runner serves other"):
            await replayed(recording, address)


async def test_a_runner_with_a_manager_is_left_alone(recording: Path) -> None:
    async with runner() as address, channel_to(address) as channel:
        live = runner_pb2_grpc.RunnerServiceStub(channel).Execute()
        await live.write(pb.ExecuteRequest(attach=pb.Attach(protocol_version=1)))
        await live.read()
        with pytest.raises(SetupError, match=f"{address} is driven by a manager: stop its cache"):
            await replayed(recording, address)
        live.cancel()
        outcome = await replayed(recording, address)
        assert outcome.difference == "", "the stream has ended, if only just now"


async def test_nobody_at_the_address_is_named(recording: Path) -> None:
    with pytest.raises(SetupError, match="no runner answers at unix:/nowhere"):
        await replayed(recording, "unix:/nowhere.sock")


class TestCommand:
    """Without --runner: a fake one, as a process, that is told the tokens."""

    def test_it_replays_on_a_fake_runner_and_says_what_came(
        self, recording: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert run([str(recording)]) == 0
        assert capfd.readouterr().out.splitlines() == [
            "recorded: 4 plans over 1 attaches; left out 1 without a result, 0 of them refused",
            "replayed: 3 of 3 plans, 3 tokens",
            f"tokens sha256:{hashlib.sha256(ints(5, 6, 7).tobytes()).hexdigest()}",
            f"page table digests sha256:{DIGESTS}, the last {digest(5):016x}",
            "same as recorded",
        ]

    def test_a_page_table_that_differs_is_exit_code_1(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """The tokens are told, the page table is made."""
        path = write(
            tmp_path / "stream", ATTACHED, prefill(), result(1, 12, table_digest=digest(4))
        )
        assert run([str(path)]) == 1
        assert "differs: plan 1: expected page table" in capfd.readouterr().out

    def test_a_cut_file_is_replayed_only_when_that_is_allowed(
        self, recording: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        recording.write_bytes(recording.read_bytes()[:-1])
        with pytest.raises(SetupError, match="3 plans before it are whole: --allow-cut"):
            run([str(recording)])
        assert run(["--allow-cut", str(recording)]) == 0
        assert "cut: the record at byte" in capfd.readouterr().out

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (None, "cannot be read: No such file"),
            (b"", "is empty: it is no recording"),
            (b"#!/bin/sh\n", "is no recording of a plan stream"),
            (b"\x04\x0a\x02\x08\x02", "of format version 2; this pagewire reads 1"),
            (b"\x04\x0a\x02\x08\x01", "holds no plan with a result"),
        ],
    )
    def test_what_cannot_be_replayed_is_one_sentence_and_exit_code_2(
        self,
        content: bytes | None,
        words: str,
        tmp_path: Path,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        if content is not None:
            (tmp_path / "stream").write_bytes(content)
        with pytest.raises(SystemExit) as caught:
            main(["replay", str(tmp_path / "stream")])
        assert caught.value.code == 2
        told = capfd.readouterr()
        assert told.out == ""
        assert told.err.startswith(f"pagewire replay: {tmp_path / 'stream'}")
        assert words in told.err

    def test_a_runner_that_is_given_is_used(self, recording: Path) -> None:
        async def against_runner() -> int:
            async with runner() as address:
                return await asyncio.to_thread(run, [str(recording), "--runner", address])

        assert asyncio.run(against_runner()) == 0
