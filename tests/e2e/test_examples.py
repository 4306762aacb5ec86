"""The programs of examples/ as a reader would run them, with and without a mistake.

The C++ one is not here: a compiler and gRPC's headers are more than the suite asks of a machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.system import System

EXAMPLES = Path(__file__).parents[2] / "examples"
QUESTION = "What is the capital of France?"
PROGRAMS = {
    "python": [sys.executable, "python/chat.py", QUESTION],
    "openai": [sys.executable, "python/openai_chat.py", QUESTION],
    "node": ["node", "node/chat.js", QUESTION],
    "curl": ["sh", "shell/curl.sh"],
    "grpcurl": ["sh", "shell/grpcurl.sh"],
}
PLAIN = ("python", "openai", "node")  # the others show the messages as they come


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "node" and shutil.which("npm") is None:
        pytest.skip("this machine has no npm, so the Node example's packages are not installed")
    return name


def run(
    program: str, system: System, grpcurl_path: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "PATH": f"{Path(grpcurl_path).parent}{os.pathsep}{os.environ['PATH']}",
        "PAGEWIRE_ADDRESS": system.address,
        "PAGEWIRE_HTTP": f"http://{system.http_address}",
    }
    return subprocess.run(
        [*PROGRAMS[program], *arguments],
        cwd=EXAMPLES,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_example_streams_an_answer(program: str, smollm2: System, grpcurl_path: str) -> None:
    ran = run(program, smollm2, grpcurl_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    if program in PLAIN:
        assert ran.stdout == "The capital of France is Paris.\n[37 tokens in, 8 out]\n"
    else:
        assert ran.stdout.count("Paris") == 1
        assert ran.stdout.count("delta") > 3, "it came in one piece"


def test_an_example_shows_what_is_wrong(program: str, smollm2: System, grpcurl_path: str) -> None:
    ran = run(program, smollm2, grpcurl_path, "-1")
    assert ran.returncode != 0
    said = ran.stdout + ran.stderr
    assert "temperature is -1" in said
    assert "INVALID_FIELD" in said.upper()
    assert "Traceback" not in said


def test_the_table_names_every_example() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for pattern in ("*/chat.*", "python/*.py", "shell/*.sh"):
        for path in EXAMPLES.glob(pattern):
            assert f"({path.relative_to(EXAMPLES)})" in listed
