"""`python -m gateway`."""

from __future__ import annotations

from gateway.config import GatewayConfig
from gateway.server import serve
from servicekit.process import run_service

if __name__ == "__main__":
    run_service("gateway", "Pagewire's public face: text in, text out.", GatewayConfig, serve)
