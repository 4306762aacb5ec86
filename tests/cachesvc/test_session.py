"""A gateway's outbox."""

from __future__ import annotations

import numpy as np
from pagewire.v1 import cache_pb2 as pb

from cachesvc.service import TICK_S
from cachesvc.session import QUIET_TICKS, GatewaySession, Load, put_sampled
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


async def test_one_that_says_nothing_for_a_second_tells_how_much_there_is_to_do() -> None:
    session = GatewaySession(1, "tiny")
    session.put_accepted(1)
    for _ in range(2 * QUIET_TICKS):
        session.tick(Load(1, 2, 30))
    waiting = await session.take()
    assert waiting is not None
    assert not waiting.HasField("load"), "what waits to be said is enough"
    for _ in range(QUIET_TICKS):
        session.tick(Load(3, 4, 50))
    word = await session.take()
    assert word == pb.SessionResponse(
        load=pb.Load(running_requests=3, waiting_requests=4, last_result_plan_id=50)
    )


def test_a_second_has_room_for_the_ticks_of_silence() -> None:
    assert QUIET_TICKS * TICK_S < 1
