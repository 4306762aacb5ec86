"""Logs of what tests provoke on purpose would bury what pytest has to say."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog


@pytest.fixture(autouse=True)
def quiet_logs() -> Iterator[None]:
    silent = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=silent, cache_logger_on_first_use=False)
    yield
    structlog.reset_defaults()


@pytest.fixture
def log_lines(quiet_logs: None) -> Iterator[list[Any]]:
    """What is logged, of level info and above."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    with structlog.testing.capture_logs() as lines:
        yield lines
