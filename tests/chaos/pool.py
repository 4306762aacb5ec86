"""What is asked: a pool of requests made from a seed, and each client's uses of them.

Prompts are of mixed lengths, some begin alike, some take several plans at a small step budget;
half are greedy, half drawn with a seed; some have stop strings, some ask for two choices.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pagewire.v1 import inference_pb2 as pb
from pagewire.v1 import sampling_pb2

PromptMaker = Callable[[random.Random], list[list[int]]]
SALTS = ("", "", "red", "blue")  # shared ones: their pages are hit, and adopted by a new manager


@dataclass(frozen=True)
class Asked:
    """A request of the pool; `number` is its place there."""

    number: int
    request: pb.GenerateRequest

    @property
    def prompt_ids(self) -> list[int]:
        return list(self.request.token_ids.ids)

    @property
    def num_choices(self) -> int:
        return self.request.n or 1

    @property
    def is_greedy(self) -> bool:
        return self.request.sampling.temperature == 0


class Use(NamedTuple):
    """One sending of a request: `leaves_after` tokens the client cancels; None: it stays."""

    number: int
    asked: Asked
    cache_salt: str
    leaves_after: int | None


def tiny_prompts(rng: random.Random) -> list[list[int]]:
    """Ids of bytes, 1 to 180: a third of them on one of three beginnings of 40 to 100."""
    heads = [_random_ids(rng, length) for length in (40, 67, 100)]
    prompts = []
    for nth in range(60):
        tail = _random_ids(rng, rng.choice((1, 3, 15, 16, 17, 40, 64, 80)))
        head = heads[nth % 3] if nth % 3 == rng.randrange(3) else []
        prompts.append(head + tail)
    return prompts


def _random_ids(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(256) for _ in range(length)]


def asked_of(
    seed: int,
    prompts: Sequence[list[int]],
    max_tokens: Sequence[int],
    temperatures: Sequence[float],
) -> list[Asked]:
    """One request a prompt, none with a stop string yet."""
    rng = random.Random(f"requests {seed}")
    made = []
    for number, prompt_ids in enumerate(prompts):
        temperature = 0.0 if number % 2 else rng.choice(temperatures)
        request = pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=prompt_ids),
            sampling=sampling_pb2.SamplingParams(
                temperature=temperature, seed=rng.randrange(1 << 40)
            ),
            stop=pb.StopParams(max_tokens=rng.choice(max_tokens), ignore_eos=rng.random() < 0.7),
        )
        if rng.random() < 0.12:
            request.n = 2
        made.append(Asked(number, request))
    return made


def with_stop_string(asked: Asked, number: int, text: str) -> Asked | None:
    """The same request, ended by a piece from the middle of its answer; None where the answer is
    too short for that.
    """
    if len(text) < 12:
        return None
    request = pb.GenerateRequest()
    request.CopyFrom(asked.request)
    request.ClearField("n")
    middle = len(text) // 2
    request.stop.strings.append(text[middle : middle + 3])
    return Asked(number, request)


def use_of(seed: int, number: int, pool: Sequence[Asked]) -> Use:
    """Use `number` of a run. Every other one has a salt of its own, so that its prompt is computed
    whole.
    """
    rng = random.Random(f"use {seed} {number}")
    asked = rng.choice(pool)
    salt = rng.choice(SALTS) if rng.random() < 0.5 else f"own {number}"
    leaves = rng.randrange(1, 12) if rng.random() < 0.04 else None
    return Use(number, asked, salt, leaves)
