"""A runner comes back smaller than the one that requests began on."""

from __future__ import annotations

import pytest

from cachesvc.request import FinishCause
from tests.cachesvc.builders import describe, submission
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.truth import truth_of
from tests.cachesvc.wire import Wire, wire


def boot(joined: Wire, **changes: object) -> None:
    joined.cut()
    joined.runner = FakeRunner(describe(**changes), "boot-2")
    joined.attach()


@pytest.mark.parametrize("num_tokens", [12, 13, 14, 18])
def test_an_answer_ends_where_the_context_of_the_new_runner_does(num_tokens: int) -> None:
    """It had 13 tokens or more behind a prompt of 3, and the new runner's rows hold 16: no row
    could take it, and the manager raised with every plan.
    """
    joined = wire(credits=1)
    wanted = submission(1, [1, 2, 3])
    joined.core.submit(1, wanted)
    for _ in range(num_tokens):
        joined.step()
    boot(joined, max_seq_len=16)
    joined.run_until_idle()
    answer = truth_of(wanted, describe()).answer
    assert joined.heard.tokens[1, 1] == answer[: max(num_tokens, 13)]
    assert joined.heard.cause(1) is FinishCause.MAX_TOKENS
    assert joined.core.is_idle


def test_pages_of_another_size_hold_the_same_answers() -> None:
    joined = wire()
    for key in (1, 2):
        joined.core.submit(1, submission(key, [1, 2, 3, 4, 5], max_tokens=9))
    joined.step()
    boot(joined, page_size=2, num_pages=12)
    joined.run_until_idle()
    for key in (1, 2):
        wanted = submission(key, [1, 2, 3, 4, 5], max_tokens=9)
        assert joined.heard.tokens[1, key] == truth_of(wanted, describe()).answer
    assert joined.core.check_integrity() == []
