"""What is served in the benchmarks: prompts and lengths, exactly the same on every machine.

Every request samples at TEMPERATURE and has no stop id, so that it ends after `max_tokens`. Those
of a workload are submitted together.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

TEMPERATURE = 0.6
STEP_BUDGET_TOKENS = 16_384
NUM_ROWS = 256
NUM_IDS = 10_001  # ids go from 0 to 10,000, whatever the vocabulary


class Request(NamedTuple):
    """A prompt, and how many tokens are sampled after it."""

    prompt_ids: list[int]
    max_tokens: int


@dataclass(frozen=True)
class Workload:
    """Requests whose prompts agree in their first `common_len` ids, and in no page after them."""

    name: str
    requests: tuple[Request, ...]
    common_len: int = 0

    @property
    def input_tokens(self) -> int:
        return sum(len(request.prompt_ids) for request in self.requests)

    @property
    def output_tokens(self) -> int:
        return sum(request.max_tokens for request in self.requests)

    @property
    def cached_tokens(self) -> int:
        """What a later turn finds in the prefix cache, when the common ids stay there."""
        return self.common_len * len(self.requests)

    def turn(self, number: int) -> Workload:
        """The workload once more, with other ids behind the common ones; turn 0 is the workload.

        Each of those ids moves on by `number`, around: turns share no prefix but the common one.
        """
        moved = tuple(
            request._replace(
                prompt_ids=request.prompt_ids[: self.common_len]
                + [(i + number) % NUM_IDS for i in request.prompt_ids[self.common_len :]]
            )
            for request in self.requests
        )
        return Workload(self.name, moved, self.common_len)


def workload(name: str) -> Workload:
    """Errors: KeyError for a name that is not in NAMES."""
    return _MAKERS[name]()


def offline() -> Workload:
    """256 requests, prompts and answers of 100 to 1,024 tokens: those that nano-vllm and
    mini-sglang publish figures of.
    """
    rng = random.Random(0)
    prompts = [_ids(rng, rng.randint(100, 1024)) for _ in range(256)]
    lens = [rng.randint(100, 1024) for _ in prompts]
    return Workload("offline", tuple(map(Request, prompts, lens)))


def alike(name: str, num_requests: int, prompt_len: int, max_tokens: int) -> Workload:
    """Requests of the same lengths, whose ids have nothing in common."""
    rng = random.Random(0)
    prompts = [_ids(rng, prompt_len) for _ in range(num_requests)]
    return Workload(name, tuple(Request(prompt, max_tokens) for prompt in prompts))


def with_common_prefix(
    name: str, num_requests: int, common_len: int, own_len: int, max_tokens: int
) -> Workload:
    """Requests that begin with the same ids, and go on with their own."""
    rng = random.Random(0)
    common = _ids(rng, common_len)
    prompts = [common + _ids(rng, own_len) for _ in range(num_requests)]
    return Workload(name, tuple(Request(prompt, max_tokens) for prompt in prompts), common_len)


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randint(0, NUM_IDS - 1) for _ in range(count)]


_MAKERS: dict[str, Callable[[], Workload]] = {
    "offline": offline,
    "single": lambda: alike("single", 1, 512, 512),
    "b8": lambda: alike("b8", 8, 512, 256),
    "b32": lambda: alike("b32", 32, 512, 256),
    "b128": lambda: alike("b128", 128, 512, 256),
    "prefill2k": lambda: alike("prefill2k", 64, 2000, 1),
    "shared": lambda: with_common_prefix("shared", 256, 2048, 128, 64),
}
NAMES = tuple(_MAKERS)
