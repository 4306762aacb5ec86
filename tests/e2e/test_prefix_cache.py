"""What is cached changes no token: cold, again, at the same time, behind a shared prefix, evicted.

A prompt P whose greedy answer is A has continuations that are known as well: P + A[:k] is answered
with A[k:], so that prompts can share a prefix of any length.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.system import System, greedy, running
from tests.e2e.tiny_model import clear_prompt

ANSWER_LEN = 60


async def ids_and_cached(call: Any) -> tuple[list[int], int]:
    """Token ids of an answer, and usage.cached_tokens."""
    token_ids: list[int] = []
    cached = -1
    async for response in call:
        token_ids += response.delta.token_ids
        if response.HasField("finished"):
            cached = response.finished.usage.cached_tokens
    return token_ids, cached


@pytest.mark.parametrize("page_size", [1, 4, 16])
async def test_continuations_hit_every_full_page_and_get_the_same_tokens(
    page_size: int, tiny_dir: Path, tmp_path: Path
) -> None:
    prompt, answer = clear_prompt(tiny_dir, 21, ANSWER_LEN)
    kept = [0, 1, 2, 3, 10, 11, 12, 26, 27, 28, 40]  # around the borders of pages
    settings = {"num_threads": 1, "page_size": page_size, "num_pages": 2048 // page_size}
    with running(System(tiny_dir, tmp_path, **settings)) as system:
        async with system.client() as stub:
            twins = await asyncio.gather(
                *(ids_and_cached(stub.Generate(greedy(prompt, ANSWER_LEN))) for _ in range(3))
            )
            await system.settled()
            continued = await asyncio.gather(
                *(
                    ids_and_cached(stub.Generate(greedy(prompt + answer[:k], ANSWER_LEN - k)))
                    for k in kept
                )
            )
        stats = await system.settled()
    assert [ids for ids, _ in twins] == [answer] * 3
    assert [ids for ids, _ in continued] == [answer[k:] for k in kept]
    full = [(len(prompt) + k - 1) // page_size * page_size for k in kept]
    assert [cached for _, cached in continued] == full
    assert stats.refused_total == stats.healed_total == 0


async def test_choices_of_one_prompt_share_its_full_pages(tiny: System, tiny_dir: Path) -> None:
    prompt, answer = clear_prompt(tiny_dir, 37, 8)
    salt = "choices"  # nobody else has it
    async with tiny.client() as stub:
        call = stub.Generate(greedy(prompt, 8, n=3, cache_salt=salt))
        responses = [response async for response in call]
    ids = {choice: [] for choice in range(3)}
    for response in responses:
        ids[response.delta.choice] += response.delta.token_ids
    assert ids == dict.fromkeys(range(3), answer)
    ends = [response.finished for response in responses if response.HasField("finished")]
    cached = {end.choice: end.usage.cached_tokens for end in ends}
    assert cached == {0: 0, 1: 32, 2: 32}
    assert {end.usage.prompt_tokens for end in ends} == {len(prompt)}
    await tiny.settled()


async def test_a_prompt_hits_nothing_of_what_another_salt_cached(
    tiny_dir: Path, tmp_path: Path
) -> None:
    prompt, answer = clear_prompt(tiny_dir, 21, 8)
    cached = []
    with running(System(tiny_dir, tmp_path, num_threads=1, page_size=4)) as system:
        async with system.client() as stub:
            for salt in ("", "one", "two", "one", "two", ""):
                request = greedy(prompt, 8, cache_salt=salt)
                ids, cached_tokens = await ids_and_cached(stub.Generate(request))
                assert ids == answer
                cached.append(cached_tokens)
    assert cached == [0, 0, 0, 20, 20, 20]


async def test_answers_are_the_same_when_shared_pages_are_evicted_and_rows_preempted(
    tiny_dir: Path, tmp_path: Path
) -> None:
    families = [clear_prompt(tiny_dir, length, ANSWER_LEN) for length in (9, 17, 33)]
    settings = {"num_threads": 1, "page_size": 4, "num_pages": 40, "max_running_reqs": 6}
    wanted = [(family, k) for k in (0, 7, 8, 9, 30) for family in families] * 2
    with running(System(tiny_dir, tmp_path, **settings)) as system:
        async with system.client() as stub:
            answers = await asyncio.gather(
                *(
                    ids_and_cached(stub.Generate(greedy(prompt + answer[:k], ANSWER_LEN - k)))
                    for (prompt, answer), k in wanted
                )
            )
        stats = await system.settled()
    assert [ids for ids, _ in answers] == [answer[k:] for (_, answer), k in wanted]
    assert stats.evicted_pages_total > 0, "the pool was meant to be too small"
    assert stats.preempted_total > 0, "the pool was meant to be too small"
    assert stats.cached_tokens_total > 0
    assert stats.refused_total == stats.healed_total == 0


async def test_a_killed_runner_voids_the_cache_and_no_answer(
    tiny_dir: Path, tmp_path: Path
) -> None:
    prompt, answer = clear_prompt(tiny_dir, 21, ANSWER_LEN)
    with running(System(tiny_dir, tmp_path, num_threads=1, page_size=4)) as system:
        async with system.client() as stub:
            await ids_and_cached(stub.Generate(greedy(prompt, ANSWER_LEN)))
            await asyncio.to_thread(system.kill, "runnersvc")
            system.start_one("runnersvc")
            await system.attached(times=2)
            again = await ids_and_cached(stub.Generate(greedy(prompt, ANSWER_LEN)))
            third = await ids_and_cached(stub.Generate(greedy(prompt, ANSWER_LEN)))
        await system.settled()
    assert again == (answer, 0)
    assert third == (answer, 20)
