"""`python -m runnersvc.fake`: a runner with the real protocol and the real rules, and no model.

For tests of what stands in front of a runner, for load without a device, and for replaying a plan
stream: what it samples is chosen, and so is how long a step takes. It never imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from runnersvc.fake_model import ChoosesTokens, DrawnTokens, FakeModel, ScriptedTokens, ToldTokens
from runnersvc.serving import serve_model
from servicekit.config import setting
from servicekit.errors import SetupError
from servicekit.model_dir import fingerprint, read_config
from servicekit.plan import RunnerDescription
from servicekit.plan_history import read_history
from servicekit.process import require_at_least, run_service

ANYTHING = RunnerDescription(
    model_fingerprint="",
    num_layers=1,
    num_kv_heads=1,
    head_dim=1,
    dtype="none",
    page_size=16,
    num_pages=4096,
    num_rows=64,
    max_seq_len=8192,
    vocab_size=32_000,
    rank=0,
    num_ranks=1,
)


@dataclass(frozen=True)
class FakeRunnerConfig:
    """Read once in `__main__`. Errors: SetupError for a value out of range, or not exactly one
    origin.
    """

    listen: str = setting("address for the manager, unix:PATH or HOST:PORT")
    model: str | None = setting("model directory, for its fingerprint and vocabulary", None)
    fingerprint: str | None = setting("fingerprint to serve, in place of a model's", None)
    recording: str | None = setting("recording: its runner and tokens, whatever follows", None)
    page_size: int = setting("tokens a page", ANYTHING.page_size)
    num_pages: int = setting("the page pool, in pages", ANYTHING.num_pages)
    max_running_reqs: int = setting("rows", ANYTHING.num_rows)
    max_seq_len: int = setting("tokens of prompt and answer", ANYTHING.max_seq_len)
    vocab_size: int | None = setting("token ids; the model's, else 32000, when not given", None)
    tokens: str | None = setting(
        "ids as 5,6,7 that every row samples, by position; else drawn", None
    )
    step_ms: float = setting("how long a step takes", 0.0)
    prefill_us_per_token: float = setting("how much longer, a prompt token", 0.0)
    metrics: str | None = setting("address for Prometheus, HOST:PORT; none when not given", None)
    max_step_s: float = setting(
        "seconds without a result of any accepted plan after which the process ends, exit code 1",
        300.0,
    )
    grace_s: float = setting("seconds that the manager gets to end its stream on SIGTERM", 10.0)
    parent_fd: int | None = setting("file descriptor whose end, as SIGTERM, asks to stop", None)
    log_level: str = setting("debug, info, warning or error", "info")

    def __post_init__(self) -> None:
        for name in ("page_size", "num_pages", "max_running_reqs", "max_seq_len", "vocab_size"):
            value = getattr(self, name)
            if value is not None:
                require_at_least(name, value, 1)
        for name in ("step_ms", "prefill_us_per_token", "grace_s"):
            require_at_least(name, getattr(self, name), 0)
        require_at_least("max_step_s", self.max_step_s, 0.001)
        if sum(given is not None for given in (self.model, self.fingerprint, self.recording)) != 1:
            raise SetupError("give one of --model, --fingerprint and --recording")

    @property
    def script(self) -> list[int] | None:
        """The ids of --tokens. Errors: SetupError."""
        if self.tokens is None:
            return None
        try:
            return [int(word) for word in self.tokens.split(",")]
        except ValueError:
            raise SetupError(f"--tokens is {self.tokens}; it must be ids as 5,6,7") from None


def load(config: FakeRunnerConfig) -> tuple[FakeModel, RunnerDescription]:
    """Errors: SetupError for a model or a recording that cannot be read, or ids outside the
    vocabulary.
    """
    if config.recording is not None:
        history = read_history(Path(config.recording), allow_cut=True)
        description = history.description
        tokens: ChoosesTokens = ToldTokens(
            (plan.sampled_ids for plan in history.plans), DrawnTokens(description.vocab_size)
        )
    else:
        description = _description(config)
        tokens = _tokens(config.script, description.vocab_size)
    model = FakeModel(
        description,
        tokens,
        step_s=config.step_ms / 1e3,
        prefill_s=config.prefill_us_per_token / 1e6,
    )
    return model, description


def _description(config: FakeRunnerConfig) -> RunnerDescription:
    vocab_size, served = ANYTHING.vocab_size, config.fingerprint
    if config.model is not None:
        model_dir = Path(config.model)
        served = fingerprint(model_dir)
        vocab_size = int(read_config(model_dir).get("vocab_size", vocab_size))
    assert served is not None, "one of the two is given"
    return replace(
        ANYTHING,
        model_fingerprint=served,
        page_size=config.page_size,
        num_pages=config.num_pages,
        num_rows=config.max_running_reqs,
        max_seq_len=config.max_seq_len,
        vocab_size=config.vocab_size or vocab_size,
    )


def _tokens(script: list[int] | None, vocab_size: int) -> ChoosesTokens:
    if script is None:
        return DrawnTokens(vocab_size)
    for token_id in script:
        if not 0 <= token_id < vocab_size:
            raise SetupError(f"--tokens has {token_id}; ids go from 0 to {vocab_size - 1}")
    return ScriptedTokens(script)


async def serve(config: FakeRunnerConfig) -> None:
    """Run until SIGTERM. Errors: SetupError."""
    await serve_model(config, partial(load, config))


if __name__ == "__main__":
    run_service(
        "runnersvc.fake",
        "A runner without a model: executes plans with chosen tokens and times.",
        FakeRunnerConfig,
        serve,
    )
