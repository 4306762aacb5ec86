"""A gateway's outbox."""

from __future__ import annotations

import numpy as np

from cachesvc.session import GatewaySession, put_sampled
from cachesvc.step import Sampled


def sampled(*token_ids: int) -> Sampled:
    """Tokens of session 1, of keys from 1 on."""
    count = len(token_ids)
    session_ids, keys = np.ones(count, dtype=np.int64), np.arange(1, count + 1, dtype=np.int32)
    return Sampled(session_ids, keys, np.array(token_ids, dtype=np.int32))


async def test_tokens_that_wait_for_a_write_go_together_with_the_time_of_the_first() -> None:
    session = GatewaySession(1, "tiny")
    put_sampled({1: session}, sampled(5, 6), now_us=1_000)
    put_sampled({1: session}, sampled(7), now_us=2_000)
    together = await session.take()
    assert together is not None
    assert list(together.step_output.token_ids) == [5, 6, 7]
    assert together.step_output.sent_at_us == 1_000
    put_sampled({1: session}, sampled(8), now_us=3_000)
    later = await session.take()
    assert later is not None
    assert later.step_output.sent_at_us == 3_000
