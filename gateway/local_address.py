"""Whether only this machine reaches an address."""

from __future__ import annotations

from ipaddress import ip_address


def is_local(address: str) -> bool:
    """Of "HOST:PORT" or "unix:PATH". A name other than localhost may be anybody's."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
