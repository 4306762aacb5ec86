"""Settings of cachesvc."""

from __future__ import annotations

from dataclasses import dataclass

from servicekit.config import setting
from servicekit.process import require_at_least


@dataclass(frozen=True)
class CacheConfig:
    """Read once in `__main__`. Errors: SetupError for a value out of range."""

    listen: str = setting("address for gateways, unix:PATH or HOST:PORT")
    runner: str = setting("address of the runner, unix:PATH or HOST:PORT")
    step_budget_tokens: int = setting("tokens of a step: decode first, prompts fill it", 2048)
    credits: int = setting("plans sent ahead of their results", 2)
    record: str | None = setting("file to write the plan stream to; it must not exist", None)
    metrics: str | None = setting("address for Prometheus, HOST:PORT; none when not given", None)
    grace_s: float = setting("seconds that requests get to end after SIGTERM", 30.0)
    parent_fd: int | None = setting("file descriptor whose end, as SIGTERM, asks to stop", None)
    log_level: str = setting("debug, info, warning or error", "info")

    def __post_init__(self) -> None:
        require_at_least("step_budget_tokens", self.step_budget_tokens, 1)
        require_at_least("credits", self.credits, 1)
        require_at_least("grace_s", self.grace_s, 0)
