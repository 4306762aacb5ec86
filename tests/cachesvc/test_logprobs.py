"""Log probabilities reach the request that asked for them, as many as it asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from servicekit.plan import Logprobs, Result
from servicekit.sampling import Sampling
from tests.cachesvc.builders import ints, submission
from tests.cachesvc.wire import Wire, wire


def wire_of_three() -> Wire:
    """Request 1 asks for the two likeliest, 2 for nothing, 3 for the sampled token alone."""
    joined = wire(credits=1)
    for key, wanted in ((1, 2), (2, None), (3, 0)):
        sampling = Sampling(seed=key, logprobs=wanted)
        joined.core.submit(1, submission(key, max_tokens=4, sampling=sampling))
    joined.send()
    joined.deliver_plan()
    joined.execute()
    return joined


def with_logprobs(joined: Wire, samples: list[int]) -> None:
    """The answer that waits comes with -0.5, -1.5 … for those samples, and two tops for each."""
    answer = joined.answers[0]
    assert isinstance(answer, Result)
    count = len(samples)
    chosen = -0.5 - np.arange(count, dtype=np.float32)
    top_ids = np.arange(2 * count, dtype=np.int32).reshape(count, 2)
    top = -np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    logprobs = Logprobs(ints(*samples), chosen, top_ids, top)
    joined.answers[0] = replace(answer, logprobs=logprobs)


def test_each_gets_as_many_as_it_asked_for() -> None:
    joined = wire_of_three()
    with_logprobs(joined, [0, 2])
    joined.deliver_answer()
    (first,), (third,) = joined.heard.logprobs[1, 1], joined.heard.logprobs[1, 3]
    assert (first.chosen, first.top_ids, first.top) == (-0.5, [0, 1], [0.0, -1.0])
    assert (third.chosen, third.top_ids, third.top) == (-1.5, [], [])
    assert joined.heard.logprobs[1, 2] == []


def test_those_of_a_token_that_is_dropped_are_dropped_with_it() -> None:
    joined = wire_of_three()
    with_logprobs(joined, [0, 2])
    joined.core.cancel(1, 1)
    joined.deliver_answer()
    assert joined.heard.logprobs[1, 1] == []
    assert len(joined.heard.logprobs[1, 3]) == 1


def test_the_runner_is_told_who_asks() -> None:
    joined = wire_of_three()
    rules = [row.rules for row in joined.sent[0].open_rows]
    assert [None if one is None else one.logprobs for one in rules] == [2, None, 0]
