"""`python -m gateway`."""

from __future__ import annotations

from gateway.config import GatewayConfig
from gateway.without_torch import keep_torch_out
from servicekit.process import run_service


async def _serve(config: GatewayConfig) -> None:
    from gateway.server import serve  # after torch is kept out

    await serve(config)


if __name__ == "__main__":
    keep_torch_out()
    run_service("gateway", "Pagewire's public face: text in, text out.", GatewayConfig, _serve)
