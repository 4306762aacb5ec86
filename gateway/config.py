"""Settings of the gateway."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.smg.extra import check_installed
from servicekit.config import setting
from servicekit.model_dir import LOAD_FORMATS, check_load_format
from servicekit.process import require_at_least


@dataclass(frozen=True)
class GatewayConfig:
    """Read once in `__main__`. Errors: SetupError for a value out of range, or an extra that is
    asked for and missing.
    """

    listen: str = setting("public address, HOST:PORT or unix:PATH")
    cache: str = setting("address of cachesvc, unix:PATH or HOST:PORT")
    model: str = setting("model directory, for its tokenizer and chat template")
    http: str | None = setting("address of the OpenAI API, HOST:PORT; none when not given", None)
    served_name: str | None = setting(
        "name that requests may call the model by; the directory's when not given", None
    )
    smg: bool = setting("speak vllm.grpc.engine.VllmEngine too, for the router smg", False)
    load_format: str = setting("the runner's: safetensors, or dummy", LOAD_FORMATS[0])
    max_message_bytes: int = setting("bytes of a request at most", 4 * 2**20)
    grace_s: float = setting("seconds that streams get to end after SIGTERM", 30.0)
    parent_fd: int | None = setting("file descriptor whose end, as SIGTERM, asks to stop", None)
    log_level: str = setting("debug, info, warning or error", "info")

    def __post_init__(self) -> None:
        check_load_format(self.load_format)
        if self.smg:
            check_installed()
        require_at_least("max_message_bytes", self.max_message_bytes, 1024)
        require_at_least("grace_s", self.grace_s, 0)
