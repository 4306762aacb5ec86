"""`python -m cachesvc`."""

from __future__ import annotations

from cachesvc.config import CacheConfig
from cachesvc.server import serve
from servicekit.process import run_service

if __name__ == "__main__":
    run_service("cachesvc", "Pagewire's manager: pages, rows and the schedule.", CacheConfig, serve)
