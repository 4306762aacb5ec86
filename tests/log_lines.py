"""What a service logs, in tests whose other log lines nobody reads."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog


@contextmanager
def log_lines() -> Iterator[list[dict[str, Any]]]:
    """The lines from `info` on, as long as the context lasts."""
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    try:
        with structlog.testing.capture_logs() as lines:
            yield lines  # type: ignore[misc] # a line is a dict
    finally:
        structlog.configure(wrapper_class=before)
