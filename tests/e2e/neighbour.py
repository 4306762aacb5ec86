"""A request in flight beside whatever goes wrong: it must not notice, and no page may be missing
after.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.e2e.system import System, greedy, ids_of
from tests.e2e.tiny_model import clear_prompt

NUM_TOKENS = 60


@asynccontextmanager
async def undisturbed(system: System, model_dir: Path) -> AsyncIterator[None]:
    """Asserts that the neighbour's tokens are those of the undisturbed run, and that afterwards
    every page is free or evictable again.
    """
    prompt_ids, expected = clear_prompt(model_dir, 6, NUM_TOKENS)
    await system.settled()
    async with system.client() as stub:
        neighbour = stub.Generate(greedy(prompt_ids, NUM_TOKENS))
        first = [await neighbour.read() for _ in range(4)]
        yield
        rest = await ids_of(neighbour)
    assert [i for response in first for i in response.delta.token_ids] + rest == expected
    after = await system.settled()
    assert after.free_pages + after.evictable_pages == after.num_pages
