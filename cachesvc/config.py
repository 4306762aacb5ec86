"""Settings of cachesvc."""

from __future__ import annotations

from dataclasses import dataclass

from cachesvc.limits import Limits
from servicekit.config import setting
from servicekit.process import require_at_least


@dataclass(frozen=True)
class CacheConfig:
    """Read once in `__main__`. Errors: SetupError for a value out of range."""

    listen: str = setting("address for gateways, unix:PATH or HOST:PORT")
    runner: str = setting("address of the runner, unix:PATH or HOST:PORT")
    step_budget_tokens: int = setting("tokens of a step: decode first, prompts fill it", 2048)
    credits: int | None = setting(
        "plans sent ahead of their results; 2 to 4, by the time of a step, when not given", None
    )
    max_waiting: int = setting("requests that may wait for a row; more are turned away", 4096)
    long_prefill_tokens: int | None = setting(
        "a prompt with more tokens to compute is a long one; a step's budget when not given", None
    )
    max_long_prefills: int = setting("long prompts that are computed at once", 1)
    runner_silence_s: float = setting(
        "seconds without an answer, beyond what the plans sent may take, until health says so",
        10.0,
    )
    aging_s: float = setting("seconds of waiting that make up for one class of priority", 10.0)
    record: str | None = setting("file to write the plan stream to; it must not exist", None)
    journal: str | None = setting(
        "file to write down which pages hold what, so that a restart finds them cached; one that "
        "exists is read first; none when not given",
        None,
    )
    metrics: str | None = setting("address for Prometheus, HOST:PORT; none when not given", None)
    grace_s: float = setting("seconds that requests get to end after SIGTERM", 30.0)
    parent_fd: int | None = setting("file descriptor whose end, as SIGTERM, asks to stop", None)
    log_level: str = setting("debug, info, warning or error", "info")

    def __post_init__(self) -> None:
        require_at_least("step_budget_tokens", self.step_budget_tokens, 1)
        if self.credits is not None:
            require_at_least("credits", self.credits, 1)
        require_at_least("max_waiting", self.max_waiting, 1)
        require_at_least("long_prefill_tokens", self.limits.long_len, 1)
        require_at_least("max_long_prefills", self.max_long_prefills, 1)
        require_at_least("runner_silence_s", self.runner_silence_s, 0.1)
        require_at_least("aging_s", self.aging_s, 0)
        require_at_least("grace_s", self.grace_s, 0)

    @property
    def limits(self) -> Limits:
        return Limits(
            step_budget_tokens=self.step_budget_tokens,
            credits=self.credits,
            max_waiting=self.max_waiting,
            long_prefill_tokens=self.long_prefill_tokens,
            max_long_prefills=self.max_long_prefills,
            aging_s=self.aging_s,
            runner_silence_s=self.runner_silence_s,
            want_digests=self.record is not None,
        )
