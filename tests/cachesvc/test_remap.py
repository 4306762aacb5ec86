"""Two rows with the same pages: the second is pointed at the first one's, its own are free."""

from __future__ import annotations

from tests.cachesvc.builders import submission
from tests.cachesvc.wire import Wire, wire

ONES = [1] * 8  # two pages of four


def two_alike(joined: Wire, **changes: object) -> None:
    """Two requests with the prompt of ones, computed in one step whose result is not read."""
    for key in (1, 2):
        joined.core.submit(1, submission(key, ONES, **changes))
    joined.send()


def test_a_remap_is_sent_even_when_there_is_nothing_to_compute() -> None:
    """Both rows have all the tokens they may sample under way, so the next plan computes nothing.
    It was not sent, and the remap in it was lost: the second row went on to point at pages that
    were free, and the next request that got one of them was refused.
    """
    joined = wire()
    two_alike(joined, max_tokens=1)
    plan = joined.send()
    assert plan is not None
    assert (plan.write_rows.tolist(), plan.write_locs.tolist()) == ([1] * 8, list(range(8)))
    joined.core.submit(1, submission(3, [2] * 5, max_tokens=1))
    joined.run_until_idle()
    assert joined.runner.refusals == []
