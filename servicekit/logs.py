"""Logs: key-value lines on standard error, one for each request and each change of state, never one
for each step.
"""

from __future__ import annotations

import logging
import sys

import structlog

from servicekit.errors import SetupError

LEVELS = ("debug", "info", "warning", "error")


def configure_logs(service: str, level: str) -> None:
    """Set up structlog for this process; every line carries `service` and what contextvars hold.

    Errors: SetupError for a level that is none of LEVELS.
    """
    if level.lower() not in LEVELS:
        raise SetupError(f"--log-level is {level}; it must be one of {', '.join(LEVELS)}")
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(
                key_order=["timestamp", "level", "service", "event"], bool_as_flag=False
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(service=service)
