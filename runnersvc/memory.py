"""How large the page pool is: what the operator gives, or what a process may use of its card."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import structlog
import torch

from servicekit.errors import SetupError

DEFAULT_KV_BYTES = 2**30  # on a CPU
OUTSIDE_BYTES = 2**30  # CUDA context, compiled kernels, libraries: what torch's allocator lacks

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """The pool in pages, tokens or bytes, at most one of them; else from a fraction of the card."""

    num_pages: int | None = None
    kv_tokens: int | None = None
    kv_bytes: int | None = None
    gpu_memory_fraction: float = 0.9

    def num_pages_of(self, page_size: int, page_bytes: int, use: MemoryUse | None) -> int:
        """The pool in pages that can be given out; `use` of the card, None on a CPU. Logs it.

        Errors: SetupError when it is less than one page, or the card has no room for it.
        """
        if self.num_pages is not None:
            num_pages = self.num_pages
        elif self.kv_tokens is not None:
            num_pages = self.kv_tokens // page_size
        elif self.kv_bytes is not None or use is None:
            num_pages = (self.kv_bytes or DEFAULT_KV_BYTES) // page_bytes
        else:
            num_pages = use.fitting_pages(self.gpu_memory_fraction, page_bytes)
        if num_pages < 1:
            raise SetupError(
                f"the page pool does not hold one page of {page_size} tokens: give it more"
            )
        kv_bytes = (num_pages + 1) * page_bytes  # with the dummy page
        if use is not None:
            use.check_free(kv_bytes)
        figures = {} if use is None else {k: in_gib(v) for k, v in asdict(use).items()}
        log.info("page pool", num_pages=num_pages, kv_bytes=in_gib(kv_bytes), **figures)
        return num_pages


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Of one card, measured by this process; all in bytes."""

    card_bytes: int
    free_bytes: int  # of the card, with nothing but weights held here
    weights_bytes: int
    step_bytes: int  # what the largest step needs beside them
    graphs_bytes: int  # what captured graphs hold
    outside_bytes: int = OUTSIDE_BYTES

    def fitting_pages(self, fraction: float, page_bytes: int) -> int:
        """How many pages fit into `fraction` of the card beside everything else of this process.

        What other processes hold does not count, unless nothing is left for the pool: SetupError
        then, and when not even one page fits.
        """
        beside = self.step_bytes + self.graphs_bytes
        allowed = int(self.card_bytes * fraction)
        kv_bytes = allowed - self.weights_bytes - beside - self.outside_bytes
        num_pages = kv_bytes // page_bytes - 1  # one is the dummy page
        if num_pages < 1:
            raise SetupError(
                f"too little GPU memory: {in_gib(allowed)} are allowed, weights take "
                f"{in_gib(self.weights_bytes)}, the largest step {in_gib(self.step_bytes)}, graphs "
                f"{in_gib(self.graphs_bytes)}, libraries {in_gib(self.outside_bytes)}: raise "
                "--gpu-memory-fraction, lower --max-step-tokens, or take a smaller model"
            )
        return num_pages

    def check_free(self, kv_bytes: int) -> None:
        """Errors: SetupError when the card has no room for a pool of `kv_bytes`."""
        wanted = kv_bytes + self.step_bytes + self.graphs_bytes
        if wanted > self.free_bytes:
            raise SetupError(
                f"too little GPU memory: {in_gib(wanted)} are needed beside the weights, and "
                f"{in_gib(self.free_bytes)} are free: lower --gpu-memory-fraction or the page "
                "pool, or end what else uses the card"
            )


def check_weights_fit(weights_bytes: int, fraction: float) -> None:
    """Before anything is loaded. Errors: SetupError when the card has no room for the weights."""
    free_bytes, card_bytes = torch.cuda.mem_get_info()
    allowed = min(int(card_bytes * fraction) - OUTSIDE_BYTES, free_bytes)
    if weights_bytes > allowed:
        raise SetupError(
            f"too little GPU memory: the weights take {in_gib(weights_bytes)}, and "
            f"{in_gib(max(allowed, 0))} may be used for them: raise --gpu-memory-fraction, end "
            "what else uses the card, or take a smaller model"
        )


def in_gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
