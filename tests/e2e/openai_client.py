"""The `openai` package's client of a running system."""

from __future__ import annotations

from openai import AsyncOpenAI

from tests.e2e.system import System


def client(system: System) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"http://{system.http_address}/v1", api_key="none", max_retries=0)
