"""What comes of asking a service whether it serves."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from servicekit.health_check import Health, health_of, is_serving


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pw-") as path:
        yield Path(path)


def test_nobody_at_an_address_is_not_serving(directory: Path) -> None:
    address = f"unix:{directory / 'a.sock'}"
    assert not is_serving(address, timeout_s=1)
    assert health_of(address, timeout_s=1) is Health.ABSENT


def test_whoever_takes_a_connection_and_says_nothing_is_silent(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(directory / "a.sock"))
        mute.listen()
        assert health_of(f"unix:{directory / 'a.sock'}", timeout_s=0.1) is Health.SILENT
