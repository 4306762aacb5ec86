"""Settings of runnersvc."""

from __future__ import annotations

from dataclasses import dataclass

from servicekit.config import setting
from servicekit.errors import SetupError
from servicekit.model_dir import LOAD_FORMATS, check_load_format
from servicekit.process import require_at_least

DEVICES = ("cpu", "cuda")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class RunnerConfig:
    """Read once in `__main__`. Errors: SetupError for a value out of range, or two sizes of one
    pool.
    """

    listen: str = setting("address for the manager, unix:PATH or HOST:PORT")
    model: str = setting("model directory")
    device: str = setting("cpu or cuda", "cpu")
    dtype: str | None = setting(
        f"one of {', '.join(DTYPES)}; float32 on a CPU and bfloat16 on a GPU when not given", None
    )
    load_format: str = setting(
        "safetensors, or dummy: random weights in the shapes of config.json", LOAD_FORMATS[0]
    )
    page_size: int = setting("tokens a page", 16)
    num_pages: int | None = setting("the page pool, in pages", None)
    kv_tokens: int | None = setting("the page pool, in tokens", None)
    kv_bytes: int | None = setting("the page pool, in bytes", None)
    gpu_memory_fraction: float = setting(
        "of the card, for all that this process holds: its pool is what that leaves, unless it is "
        "given (on a CPU it is 1 GiB then)",
        0.9,
    )
    max_running_reqs: int = setting("rows", 64)
    max_step_tokens: int = setting("tokens of a step that memory is kept for", 2048)
    max_graph_rows: int = setting(
        "decode steps of more rows run without a CUDA graph; 0: all do", 512
    )
    max_seq_len: int | None = setting(
        "tokens of prompt and answer; the model's own limit when not given", None
    )
    num_threads: int | None = setting("threads of one operation; all cores when not given", None)
    metrics: str | None = setting("address for Prometheus, HOST:PORT; none when not given", None)
    max_step_s: float = setting(
        "seconds without a result of any accepted plan after which the process ends, exit code 1",
        300.0,
    )
    grace_s: float = setting("seconds that the manager gets to end its stream on SIGTERM", 10.0)
    parent_fd: int | None = setting("file descriptor whose end, as SIGTERM, asks to stop", None)
    log_level: str = setting("debug, info, warning or error", "info")

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise SetupError(f"--device is {self.device}; it must be one of {', '.join(DEVICES)}")
        if self.dtype not in (None, *DTYPES):
            raise SetupError(f"--dtype is {self.dtype}; it must be one of {', '.join(DTYPES)}")
        check_load_format(self.load_format)
        if not 0 < self.gpu_memory_fraction <= 1:
            raise SetupError(
                f"--gpu-memory-fraction is {self.gpu_memory_fraction}; it must be above 0, and at "
                "most 1"
            )
        require_at_least("max_graph_rows", self.max_graph_rows, 0)
        for name in (
            "page_size",
            "num_pages",
            "kv_tokens",
            "kv_bytes",
            "max_running_reqs",
            "max_step_tokens",
            "max_seq_len",
            "num_threads",
        ):
            value = getattr(self, name)
            if value is not None:
                require_at_least(name, value, 1)
        require_at_least("max_step_s", self.max_step_s, 0.001)
        require_at_least("grace_s", self.grace_s, 0)
        if sum(value is not None for value in (self.num_pages, self.kv_tokens, self.kv_bytes)) > 1:
            raise SetupError("give the page pool once: --num-pages, --kv-tokens or --kv-bytes")

    @property
    def dtype_name(self) -> str:
        return self.dtype or ("float32" if self.device == "cpu" else "bfloat16")
