"""The two models under chaos, and how they are served: small pools and steps, so that prompts take
several plans, and pages are evicted and requests preempted meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.pool import Asked, asked_of, tiny_prompts

OPENINGS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea,",
    "Die drei größten Städte Deutschlands sind",
    "1, 1, 2, 3, 5, 8, 13,",
)
TALE = (
    "It was a quiet morning in the harbour. The boats lay still, the nets hung dry, and the old "
    "keeper of the lighthouse counted the gulls on the wall as he had done on every day of his "
    "life. Nobody had told him that the ship would come. He put his cup aside and listened. "
)


@dataclass(frozen=True)
class Served:
    """A model and what is asked of it; `settings` are those of runner and manager."""

    name: str
    model_dir: Path
    asked: Sequence[Asked]
    settings: Mapping[str, object]


def tiny_served(model_dir: Path, seed: int, num_requests: int = 60) -> Served:
    prompts = tiny_prompts(random.Random(f"prompts {seed}"))[:num_requests]
    asked = asked_of(seed, prompts, max_tokens=(8, 24, 40, 60), temperatures=(0.5, 0.8))
    settings = {
        "num_threads": 1,
        "num_pages": 100,  # sixteen requests of 30 to 240 tokens want up to 200
        "max_running_reqs": 12,
        "step_budget_tokens": 32,
    }
    return Served("tiny", model_dir, asked, settings)


def smollm2_served(model_dir: Path, seed: int) -> Served:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    texts = [head + tail for head in ("", TALE, TALE * 2) for tail in OPENINGS]
    prompts = [list(tokenizer(text)["input_ids"]) for text in texts]
    asked = asked_of(seed, prompts, max_tokens=(8, 16, 24), temperatures=(0.5, 0.8))
    settings = {"num_pages": 160, "max_running_reqs": 12, "step_budget_tokens": 64}
    return Served("smollm2", model_dir, asked, settings)
