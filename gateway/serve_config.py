"""Settings of `pagewire serve`: those of the three services that an operator wants in one place."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.config import check_admin
from servicekit.config import setting
from servicekit.errors import SetupError

DEFAULT_ADDRESS = "127.0.0.1:50051"
RUNNER_SETTINGS = (
    "device",
    "dtype",
    "load_format",
    "page_size",
    "num_pages",
    "kv_tokens",
    "kv_bytes",
    "gpu_memory_fraction",
    "max_running_reqs",
    "max_graph_rows",
    "max_seq_len",
    "num_threads",
    "max_step_s",
    "step_budget_tokens",
    "runner_metrics",
)
CACHE_SETTINGS = (
    "step_budget_tokens",
    "credits",
    "max_waiting",
    "long_prefill_tokens",
    "max_long_prefills",
    "aging_s",
    "runner_silence_s",
    "record",
    "cache_metrics",
    "grace_s",
)
DEFAULT_HTTP_ADDRESS = "127.0.0.1:8000"
NO_HTTP = "off"
DEFAULT_ADMIN_ADDRESS = "127.0.0.1:50052"
NO_ADMIN = "off"
GATEWAY_SETTINGS = (
    "served_name",
    "smg",
    "load_format",
    "api_key_file",
    "tls_cert",
    "tls_key",
    "tls_client_ca",
    "max_message_bytes",
    "max_live_requests",
    "max_request_s",
    "max_outage_s",
    "manager_silence_s",
    "grace_s",
)
RUNNER_NAMES = {"runner_metrics": "metrics", "step_budget_tokens": "max_step_tokens"}  # else ours
CACHE_NAMES = {"cache_metrics": "metrics"}


@dataclass(frozen=True)
class ServeConfig:
    """None leaves a setting to the service that owns it, which also checks it."""

    listen: str = setting("public address, HOST:PORT", DEFAULT_ADDRESS)
    http: str = setting(f"address of the OpenAI API, HOST:PORT, or {NO_HTTP}", DEFAULT_HTTP_ADDRESS)
    admin: str = setting(
        f"address of AdminService, 127.0.0.1:PORT or unix:PATH, or {NO_ADMIN}",
        DEFAULT_ADMIN_ADDRESS,
    )
    api_key_file: str | None = setting(
        "file of the keys that callers need, one a line, NAME:KEY or KEY", None
    )
    tls_cert: str | None = setting("certificate chain of both APIs, a PEM file", None)
    tls_key: str | None = setting("key of --tls-cert, a PEM file without a password", None)
    tls_client_ca: str | None = setting(
        "PEM file of who signs the certificates that clients then need", None
    )
    socket_dir: str | None = setting(
        "directory for the sockets between the services; a fresh one when not given", None
    )
    served_name: str | None = setting("name that requests may call the model by", None)
    smg: bool = setting("speak vllm.grpc.engine.VllmEngine too, for the router smg", False)
    device: str | None = setting("cpu or cuda", None)
    dtype: str | None = setting("float32, bfloat16 or float16", None)
    load_format: str | None = setting("safetensors, or dummy: random weights", None)
    page_size: int | None = setting("tokens a page", None)
    num_pages: int | None = setting("the page pool, in pages", None)
    kv_tokens: int | None = setting("the page pool, in tokens", None)
    kv_bytes: int | None = setting("the page pool, in bytes", None)
    gpu_memory_fraction: float | None = setting("of the card that the runner may use", None)
    max_running_reqs: int | None = setting("rows", None)
    max_graph_rows: int | None = setting("rows of a decode step in a CUDA graph, at most", None)
    max_seq_len: int | None = setting("tokens of prompt and answer", None)
    num_threads: int | None = setting("threads of one operation in the runner", None)
    step_budget_tokens: int | None = setting(
        "tokens of a step: decode first, prompts fill it", None
    )
    credits: int | None = setting("plans sent ahead of their results", None)
    max_waiting: int | None = setting("requests that may wait for a row", None)
    long_prefill_tokens: int | None = setting("a prompt with more to compute is a long one", None)
    max_long_prefills: int | None = setting("long prompts that are computed at once", None)
    aging_s: float | None = setting("seconds that make up for a class of priority", None)
    record: str | None = setting("file to write the plan stream to; it must not exist", None)
    cache_metrics: str | None = setting("address of cachesvc for Prometheus, HOST:PORT", None)
    runner_metrics: str | None = setting("address of runnersvc for Prometheus, HOST:PORT", None)
    max_message_bytes: int | None = setting("bytes of a request at most", None)
    max_live_requests: int | None = setting(
        "answers under way for an API key at most, or without keys in all", None
    )
    max_request_s: float | None = setting("seconds that an answer may take", None)
    max_outage_s: float | None = setting(
        "seconds that answers wait while a service behind them is away", None
    )
    manager_silence_s: float | None = setting(
        "seconds without a word after which the manager is taken for hung", None
    )
    runner_silence_s: float | None = setting(
        "seconds past what its plans should take after which the runner is", None
    )
    max_step_s: float | None = setting(
        "seconds without a result after which the runner ends, to be started again", None
    )
    grace_s: float | None = setting("seconds that streams get to end after SIGTERM", None)
    log_level: str = setting("debug, info, warning or error", "info")

    def __post_init__(self) -> None:
        if self.admin != NO_ADMIN:
            check_admin(self.admin)
        elif self.tls_cert is not None:
            raise SetupError(
                f"--admin {NO_ADMIN} leaves no address without TLS, at which to see whether all is "
                "ready: give one, as --admin unix:PATH"
            )

    @property
    def ready_address(self) -> str:
        """Where health says when all is ready."""
        return self.listen if self.admin == NO_ADMIN else self.admin

    def arguments(self, names: tuple[str, ...], renamed: Mapping[str, str]) -> list[str]:
        """The given ones of `names`, as a command line of a service that calls some otherwise."""
        given = {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if name in names and value is not None and value is not False
        }
        return [
            part
            for name, value in given.items()
            for part in _given(_option(renamed.get(name, name)), value)
        ]


def _given(option: str, value: object) -> tuple[str, ...]:
    return (option,) if value is True else (option, str(value))


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
