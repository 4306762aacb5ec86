"""Which addresses only this machine reaches."""

from __future__ import annotations

import pytest

from gateway.config import GatewayConfig
from gateway.local_address import is_local
from servicekit.errors import SetupError


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "127.1.2.3:1", "[::1]:1", "localhost:1", "unix:/tmp/a.sock"]
)
def test_these_are_local(address: str) -> None:
    assert is_local(address)
    assert GatewayConfig("l", "c", "m", admin=address).admin == address


@pytest.mark.parametrize(
    "address", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1", "localhost.example.org:1"]
)
def test_these_are_not_and_are_no_place_for_admin(address: str) -> None:
    assert not is_local(address)
    with pytest.raises(SetupError, match="it must be of this machine alone"):
        GatewayConfig("l", "c", "m", admin=address)
