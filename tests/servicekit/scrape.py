"""What a Prometheus server would read."""

from __future__ import annotations

import asyncio
import socket
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def scraped(address: str) -> dict[str, float]:
    """Samples by name and labels, as `name{label=value}`."""
    text = await asyncio.to_thread(_read, address)
    return {
        sample.name
        + "".join(f"{{{name}={value}}}" for name, value in sorted(sample.labels.items())): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _read(address: str) -> str:
    with urlopen(f"http://{address}/metrics", timeout=10) as response:
        return str(response.read().decode())
