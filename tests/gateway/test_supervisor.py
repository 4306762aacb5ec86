"""What `pagewire serve` refuses before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.serve_config import ServeConfig
from gateway.supervisor import Supervisor
from gateway.tcp_listener import listener
from servicekit.errors import SetupError


@pytest.mark.parametrize("options", [("listen", "http"), ("listen", "admin"), ("http", "admin")])
async def test_one_address_for_two_things_is_refused_before_a_service_starts(
    options: tuple[str, str],
) -> None:
    """Each address was tried and given up before the next: a runner loaded its model until the
    gateway, started with it, found that its own second address was its first.
    """
    first, second = (listener("127.0.0.1:0", "--listen") for _ in range(2))
    with first, second:
        ports = [held.getsockname()[1] for held in (first, second)]
    one, other = (f"127.0.0.1:{port}" for port in ports)
    addresses = {"listen": other, "http": "off", "admin": "off"} | dict.fromkeys(options, one)
    supervisor = Supervisor(Path("model"), ServeConfig(**addresses))
    try:
        with pytest.raises(SetupError, match=f"address {one} of --{options[1]} .*in use"):
            await supervisor.start()
    finally:
        await supervisor.stop()
