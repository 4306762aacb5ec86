"""The truth: what the undisturbed system answers, kept where transformers agrees, where it is
clear, and where it is the same again beside other requests.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.chaos.clear import unclear_at
from tests.chaos.heard import Heard
from tests.chaos.load import Load
from tests.chaos.pool import Asked, Use, with_stop_string
from tests.chaos.verdict import EXACT, Truth, of_choice

NUM_CLIENTS = 16


class Pool(NamedTuple):
    """Requests with their truths by number; and how many were left out."""

    asked: list[Asked]
    truths: Mapping[int, Truth]
    left_out: int


class UndisturbedError(Exception):
    """An answer of the undisturbed system is wrong: nothing can be compared with it."""


async def undisturbed_pool(load: Load, model_dir: Path, asked: Sequence[Asked], seed: int) -> Pool:
    """Asks everything twice, in another order and with fewer at a time the second time.

    A fourth of the requests come again with a stop string from their own answer. Errors:
    UndisturbedError where a request fails.
    """
    truths = await _answers(load, asked, "first", NUM_CLIENTS)
    clear = [each for each in asked if is_clear(model_dir, each, truths[each.number])]
    stopped = []
    for each in clear[::4]:
        number = len(asked) + len(stopped)
        if (request := with_stop_string(each, number, truths[each.number][0].text)) is not None:
            stopped.append(request)
    truths |= await _answers(load, stopped, "first", NUM_CLIENTS)
    shuffled = [*clear, *stopped]
    random.Random(seed).shuffle(shuffled)
    again = await _answers(load, shuffled, "again", 5)
    kept = [each for each in shuffled if _is_same(truths[each.number], again[each.number])]
    return Pool(kept, truths, len(asked) + len(stopped) - len(kept))


def is_clear(model_dir: Path, asked: Asked, truth: Truth) -> bool:
    return all(
        unclear_at(model_dir, asked.prompt_ids, each.token_ids, asked.request.sampling, nth) is None
        for nth, each in enumerate(truth)
    )


def _is_same(truth: Truth, other: Truth) -> bool:
    return all(of_choice(one, two) is EXACT for one, two in zip(truth, other, strict=True))


async def _answers(
    load: Load, asked: Sequence[Asked], salt: str, num_clients: int
) -> dict[int, Truth]:
    uses = iter([Use(each.number, each, salt, None) for each in asked])
    found: dict[int, Truth] = {}

    def keep(use: Use, heard: Heard) -> None:
        if heard.failure:
            raise UndisturbedError(f"request {use.asked.number}: {heard.failure}")
        found[use.asked.number] = tuple(choice.answer for choice in heard.choices)

    await load.ask_one_after_the_other(num_clients, lambda: next(uses, None), keep)
    return found
