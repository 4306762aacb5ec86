"""A TCP port, taken before anything else starts."""

from __future__ import annotations

import socket

from servicekit.errors import SetupError


def listener(address: str, option: str) -> socket.socket:
    """A socket that listens at HOST:PORT, to be closed by the caller; nobody else gets that port.

    Errors: SetupError, which names `option`, when the address is none or is taken.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise SetupError(f"{option} is {address}; it must be HOST:PORT")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family, reuse_port=False)
    except OSError as error:
        raise SetupError(
            f"address {address} of {option} cannot be bound: {error.strerror}"
        ) from error
