"""The command line of `pagewire replay`: where the runner comes from, and what is printed."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.replay import Outcome, digest_text, replay
from servicekit.errors import SetupError
from servicekit.health_check import is_serving
from servicekit.plan_history import PlanHistory, read_history

POLL_S = 0.05


def run(arguments: list[str]) -> int:
    """Replay as `arguments` say and print what came of it. Returns the exit code: 0 when all is as
    recorded, 1 when it is not. Errors: SetupError, PagewireError.
    """
    parser = argparse.ArgumentParser(prog="pagewire replay")
    parser.add_argument("file", type=Path, help="what cachesvc --record FILE wrote")
    parser.add_argument(
        "--runner",
        metavar="ADDRESS",
        help="a runner like the recorded one, with no manager; without it a fake one is started, "
        "which is told the tokens and computes nothing",
    )
    parser.add_argument(
        "--allow-cut", action="store_true", help="replay what is whole of a file that is cut"
    )
    options = parser.parse_args(arguments)
    history = read_history(options.file, allow_cut=options.allow_cut)
    outcome = asyncio.run(_replay(history, options.runner))
    sys.stdout.write(_summary(history, outcome))
    return 1 if outcome.difference else 0


async def _replay(history: PlanHistory, address: str | None) -> Outcome:
    if address is not None:
        return await replay(history, address)
    async with _fake_runner(history.path) as fake_address:
        return await replay(history, fake_address)


@asynccontextmanager
async def _fake_runner(recording: Path) -> AsyncIterator[str]:
    """The address of a runner without a model that is told the recorded tokens; it ends with the
    context, and with this process.
    """
    parent_fd, own_fd = os.pipe()
    with tempfile.TemporaryDirectory(prefix="pagewire-") as directory:
        address = f"unix:{directory}/runner.sock"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "runnersvc.fake"),
            *("--listen", address, "--recording", str(recording)),
            *("--log-level", "warning", "--parent-fd", str(parent_fd)),
            pass_fds=[parent_fd],
            stdin=asyncio.subprocess.DEVNULL,
        )
        try:
            while not await asyncio.to_thread(is_serving, address):
                if process.returncode is not None:
                    raise SetupError("the fake runner ended; its last line above says why")
                await asyncio.sleep(POLL_S)
            yield address
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
            os.close(parent_fd)
            os.close(own_fd)


def _summary(history: PlanHistory, outcome: Outcome) -> str:
    cut = f"cut: {history.cut}\n" if history.cut else ""
    digests = "none recorded"
    if outcome.digests_sha256:
        digests = f"sha256:{outcome.digests_sha256}, the last {digest_text(outcome.last_digest)}"
    return (
        f"recorded: {history.num_recorded} plans over {history.num_attaches} attaches; left out "
        f"{history.num_left_out} without a result, {history.num_refused} of them refused\n"
        f"{cut}"
        f"replayed: {outcome.num_results} of {len(history.plans)} plans, "
        f"{outcome.num_tokens} tokens\n"
        f"tokens sha256:{outcome.tokens_sha256}\n"
        f"page table digests {digests}\n"
        f"{'differs: ' + outcome.difference if outcome.difference else 'same as recorded'}\n"
    )
