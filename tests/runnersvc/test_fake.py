"""The fake runner as a process, and what its settings mean."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pagewire.v1 import runner_pb2 as pb
from pagewire.v1 import runner_pb2_grpc

from runnersvc.fake import FakeRunnerConfig, load
from runnersvc.runner import Runner
from runnersvc.serving import _until_a_step_hangs
from servicekit.errors import SetupError
from servicekit.health_check import is_serving
from servicekit.plan_codec import encode_plan
from servicekit.table_digest import table_digest
from tests.cachesvc.builders import describe, ints
from tests.cachesvc.rpc import channel_to, socket_address
from tests.runnersvc.plans import decode, prefill
from tests.servicekit.recorded import ATTACHED, result, write

SMALL = ["--page-size", "4", "--num-pages", "8", "--max-running-reqs", "3", "--max-seq-len", "24"]


def config(**settings: Any) -> FakeRunnerConfig:
    return FakeRunnerConfig(listen="unix:/nowhere", **settings)


async def test_it_speaks_the_protocol_and_samples_what_it_was_told() -> None:
    with socket_address() as address:
        command = [sys.executable, "-m", "runnersvc.fake", "--listen", address, *SMALL]
        process = await asyncio.create_subprocess_exec(
            *command, "--fingerprint", "tiny", "--vocab-size", "16", "--tokens", "5,6,7"
        )
        try:
            while not await asyncio.to_thread(is_serving, address):
                assert process.returncode is None
            async with channel_to(address) as channel:
                await execute_two_plans(runner_pb2_grpc.RunnerServiceStub(channel))
        finally:
            process.terminate()
            assert await process.wait() == 0


async def execute_two_plans(stub: runner_pb2_grpc.RunnerServiceAsyncStub) -> None:
    call = stub.Execute()
    attach = pb.Attach(protocol_version=1, manager_id="manager-1", model_fingerprint="tiny")
    await call.write(pb.ExecuteRequest(attach=attach))
    description = (await call.read()).attached.description
    assert (description.page_size, description.num_pages, description.num_rows) == (4, 8, 3)
    assert (description.max_seq_len, description.vocab_size) == (24, 16)
    for one in (prefill(want_digest=True), decode(2, 9)):
        await call.write(pb.ExecuteRequest(plan=encode_plan(one)))
    first, second = await call.read(), await call.read()
    table = np.arange(4, dtype=np.int32).reshape(1, 4)
    assert list(first.result.sampled_ids) == [5]
    assert first.result.table_digest == table_digest(table, ints(0), ints(3))
    assert second.refusal.reason == pb.REFUSAL_REASON_CACHED_LEN, "the real rules"
    read = await stub.ReadPageTable(pb.ReadPageTableRequest(table_idx=0, num_positions=5))
    assert (list(read.locs), read.last_executed) == ([0, 1, 2, 3, 32], 1)


@asynccontextmanager
async def in_a_step_for_ever(*settings: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A fake runner that was sent a plan, and leaves nothing behind when it has ended."""
    with socket_address() as address:
        command = [sys.executable, "-m", "runnersvc.fake", "--listen", address, *SMALL, *settings]
        command += ["--fingerprint", "tiny", "--step-ms", "3600000"]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        while not await asyncio.to_thread(is_serving, address):
            assert process.returncode is None
        async with channel_to(address) as channel:
            stub = runner_pb2_grpc.RunnerServiceStub(channel)
            call = stub.Execute()
            attach = pb.Attach(protocol_version=1, manager_id="manager-1", model_fingerprint="tiny")
            await call.write(pb.ExecuteRequest(attach=attach))
            await call.read()
            await call.write(pb.ExecuteRequest(plan=encode_plan(prefill())))
            await asyncio.to_thread(is_serving, address)  # when it answered, it has the plan
            yield process
        directory = Path(address.removeprefix("unix:")).parent
        assert await asyncio.to_thread(os.listdir, directory) == []


async def test_a_step_that_does_not_end_does_not_hold_it_up() -> None:
    async with in_a_step_for_ever("--grace-s", "0") as process:
        process.terminate()
        assert await process.wait() == 0


async def test_a_step_that_does_not_end_ends_it() -> None:
    """The event loop answered, and nobody ever killed it: the manager waited for good."""
    async with in_a_step_for_ever("--max-step-s", "0.2") as process:
        _, logged = await process.communicate()
        assert process.returncode == 1
    assert b'event="a step does not end" plan_id=1 max_step_s=0.2' in logged


async def test_a_runner_without_a_plan_waits_for_one_as_long_as_it_takes() -> None:
    runner = Runner(*load(config(fingerprint="tiny")))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(_until_a_step_hangs(runner, 0.001), 0.05)
    runner.stop()


def test_it_never_imports_torch() -> None:
    """As a process of its own: this one may have it."""
    told = "import sys, runnersvc.fake; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", told], check=False).returncode == 0


def test_a_recording_says_what_it_is_and_what_it_samples(tmp_path: Path) -> None:
    path = write(tmp_path / "stream", ATTACHED, prefill(), decode(2, 3), result(1, 9), result(2, 8))
    model, description = load(config(recording=str(path)))
    assert description == describe()
    assert model.execute(prefill()).tolist() == [9]
    assert model.execute(decode(2, 3)).tolist() == [8]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "give one of --model, --fingerprint and --recording"),
        ({"fingerprint": "x", "model": "y"}, "give one of"),
        ({"fingerprint": "x", "page_size": 0}, "--page-size is 0; it must be at least 1"),
        ({"fingerprint": "x", "step_ms": -1.0}, "--step-ms is -1.0"),
        ({"fingerprint": "x", "tokens": "5;6"}, "--tokens is 5;6; it must be ids as 5,6,7"),
        (
            {"fingerprint": "x", "tokens": "5,6", "vocab_size": 6},
            "--tokens has 6; ids go from 0 to",
        ),
        ({"model": "/nowhere"}, "the model directory /nowhere does not exist"),
        ({"recording": "/nowhere"}, "/nowhere cannot be read"),
    ],
)
def test_what_cannot_be_served_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        load(config(**settings))
