"""The flags by which commands reach a server."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from gateway.connection import (
    API_KEY_VARIABLE,
    Connection,
    add_connection_flags,
    connection_of,
)
from servicekit.errors import SetupError

KEY = "alice-0123456789"


def connection(*arguments: str) -> Connection:
    parser = argparse.ArgumentParser()
    add_connection_flags(parser)
    return connection_of(parser.parse_args(arguments))


@pytest.fixture(autouse=True)
def _no_key_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)


def test_without_flags_it_is_the_local_server_in_the_open() -> None:
    assert connection() == Connection("127.0.0.1:50051", None, None)
    assert connection().metadata == ()


def test_the_key_comes_from_a_file_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "from-the-environment")
    assert connection().metadata == (("authorization", "Bearer from-the-environment"),)
    (tmp_path / "keys").write_text(f"alice:{KEY}\nbob-0123456789abc\n")
    assert connection("--api-key-file", str(tmp_path / "keys")).api_key == KEY


@pytest.mark.parametrize(
    "key",
    [f"{KEY}\n", f"{KEY}é", "two words 012345", "alice:0123456789", "short"],
    ids=["newline", "not ASCII", "space", "colon", "short"],
)
def test_a_key_that_no_server_has_is_refused_and_not_shown(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRPC refused what no header can hold, as "SESSION_LOST: Invalid metadata"."""
    monkeypatch.setenv(API_KEY_VARIABLE, key)
    with pytest.raises(SetupError, match=rf"^the key in \${API_KEY_VARIABLE} must be") as caught:
        connection()
    assert key not in str(caught.value)


def test_an_empty_variable_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "")
    assert connection().metadata == ()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--tls-ca", "/nowhere"], "/nowhere cannot be read"),
        (["--tls", "--tls-cert", "c"], "--tls-cert and --tls-key go together"),
        (["--tls-ca", __file__], "holds no certificates"),
        (["--tls-cert", __file__, "--tls-key", __file__], "must hold a certificate chain"),
        (["--api-key-file", "/nowhere"], "the keys in /nowhere cannot be read"),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], why: str) -> None:
    with pytest.raises(SetupError, match=why):
        connection(*arguments)
