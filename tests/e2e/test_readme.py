"""The grpcurl examples of README.md work as printed."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.e2e.system import System

README = Path(__file__).parents[2] / "README.md"
COMMANDS = [
    command.strip()
    for fence in re.findall(r"```sh\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    for command in re.split(r"\n(?=grpcurl )|\n\n", fence)
    if command.startswith("grpcurl ")
]
INVALID = '"temperature": -1'


def run(command: str, grpcurl_path: str, system: System) -> subprocess.CompletedProcess[str]:
    places = {
        "127.0.0.1:50051": system.address,
        "127.0.0.1:50052": system.admin_address,
        "/tmp/pw/cache.sock": system.cache_address.removeprefix("unix:"),
        "/tmp/pw/runner.sock": system.runner_address.removeprefix("unix:"),
    }
    for printed, real in places.items():
        command = command.replace(printed, real)
    arguments = shlex.split(command)[1:]
    return subprocess.run(
        [grpcurl_path, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_readme_shows_examples() -> None:
    assert len(COMMANDS) == 19


@pytest.mark.parametrize("command", COMMANDS)
def test_an_example_of_the_readme_works_as_printed(
    command: str, smollm2: System, grpcurl_path: str
) -> None:
    called = run(command, grpcurl_path, smollm2)
    if INVALID in command:
        assert '"reason":"INVALID_FIELD"' in called.stderr
        assert '"field":"sampling.temperature"' in called.stderr
    else:
        assert (called.returncode, called.stderr) == (0, "")
        assert called.stdout
