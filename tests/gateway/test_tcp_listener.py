"""A port is taken at once, and alone."""

from __future__ import annotations

import pytest

from gateway.tcp_listener import listener
from servicekit.errors import SetupError


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_taken_address_is_refused_with_the_name_of_its_setting(host: str) -> None:
    with listener(f"{host}:0", "--http") as held:
        address = f"{host}:{held.getsockname()[1]}"
        with pytest.raises(SetupError, match="of --http cannot be bound: Address already in use"):
            listener(address, "--http")
    listener(address, "--http").close()


@pytest.mark.parametrize("address", ["8000", ":8000", "h:http", "h:70000", "unix:/x", ""])
def test_what_is_no_address_is_refused_with_the_name_of_its_setting(address: str) -> None:
    with pytest.raises(SetupError, match=f"--http is {address}; it must be HOST:PORT"):
        listener(address, "--http")
