"""Settings of the gateway."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.local_address import is_local
from gateway.smg.extra import check_installed
from servicekit.config import setting
from servicekit.errors import SetupError
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
    admin: str | None = setting(
        "address of AdminService, of this machine alone: 127.0.0.1:PORT or unix:PATH; none when "
        "not given",
        None,
    )
    api_key_file: str | None = setting(
        "file of the keys that callers of both APIs need, one a line, NAME:KEY or KEY, read at the "
        "start; open to all when not given",
        None,
    )
    tls_cert: str | None = setting("certificate chain of both APIs, a PEM file", None)
    tls_key: str | None = setting("key of --tls-cert, a PEM file without a password", None)
    tls_client_ca: str | None = setting(
        "PEM file of who signs the certificates that clients then need", None
    )
    max_message_bytes: int = setting(
        "bytes of a request at most, on both APIs; a prompt is bounded by the model's max_seq_len",
        4 * 2**20,
    )
    max_live_requests: int | None = setting(
        "answers under way for an API key at most, or without keys for all callers together; each "
        "choice of a prompt counts; no bound when not given",
        None,
    )
    max_request_s: float | None = setting(
        "seconds that an answer may take; a caller's own deadline may be shorter; no bound when "
        "not given",
        None,
    )
    max_outage_s: float = setting(
        "seconds that live requests wait while nothing serves behind the gateway; then they fail "
        "with SESSION_LOST",
        120.0,
    )
    manager_silence_s: float = setting(
        "seconds without a word after which cachesvc is taken for hung; it speaks once a second",
        3.0,
    )
    grace_s: float = setting("seconds that streams get to end after SIGTERM", 30.0)
    parent_fd: int | None = setting("file descriptor whose end, as SIGTERM, asks to stop", None)
    log_level: str = setting("debug, info, warning or error", "info")

    def __post_init__(self) -> None:
        check_load_format(self.load_format)
        if self.smg:
            check_installed()
            if self.api_key_file is not None:
                raise SetupError(
                    "--smg beside --api-key-file: the router's first call to a worker has no key; "
                    "leave one of them out, and let the router ask for keys"
                )
        require_at_least("max_message_bytes", self.max_message_bytes, 1024)
        require_at_least("max_outage_s", self.max_outage_s, 0)
        require_at_least("manager_silence_s", self.manager_silence_s, 1.5)
        require_at_least("grace_s", self.grace_s, 0)
        if self.max_live_requests is not None:
            require_at_least("max_live_requests", self.max_live_requests, 1)
        if self.max_request_s is not None:
            require_at_least("max_request_s", self.max_request_s, 0.001)
        check_admin(self.admin)


def check_admin(address: str | None) -> None:
    """Errors: SetupError for an address that others may reach: whoever does may drain us."""
    if address is not None and not is_local(address):
        raise SetupError(
            f"--admin is {address}; it must be of this machine alone: 127.0.0.1:PORT or unix:PATH"
        )
