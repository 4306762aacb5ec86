"""A request goes on after tokens of its answer that were sampled before, by whichever manager."""

from __future__ import annotations

from typing import Any

import pytest

from cachesvc.request import FinishCause
from servicekit.errors import InvalidArgument, Reason
from tests.cachesvc.builders import submission
from tests.cachesvc.truth import truth_of
from tests.cachesvc.wire import Wire, wire

PROMPT = (1, 2, 3, 4, 5, 6)


def heard_of(joined: Wire, **wishes: Any) -> tuple[list[int], FinishCause]:
    """What the session hears of request 1."""
    joined.core.submit(1, submission(1, PROMPT, **wishes))
    joined.run_until_idle()
    return joined.heard.tokens[1, 1], joined.heard.finished[1, 1].cause


@pytest.mark.parametrize("resume_len", range(9))
def test_only_what_is_new_is_sampled_and_max_tokens_counts_all(resume_len: int) -> None:
    joined = wire()
    answer = truth_of(submission(1, PROMPT, max_tokens=8), joined.runner.description).answer
    heard = heard_of(joined, max_tokens=8, resume=answer[:resume_len])
    assert heard == (answer[resume_len:], FinishCause.MAX_TOKENS)


def test_resumed_tokens_are_found_in_the_cache_and_only_those_of_the_prompt_are_told() -> None:
    joined = wire()
    answer, _ = heard_of(joined, max_tokens=8)
    joined.core.submit(1, submission(2, PROMPT, seed=1, max_tokens=8, resume=answer[:7]))
    joined.run_until_idle()
    assert joined.heard.tokens[1, 2] == answer[7:]
    assert joined.heard.cached_len[1, 2] == len(PROMPT)


def test_tokens_that_end_in_a_stop_token_are_finished_at_once() -> None:
    joined = wire()
    assert heard_of(joined, resume=[7, 9], stop=[9]) == ([], FinishCause.STOP_TOKEN)
    assert joined.core.scheduler is not None
    assert joined.core.scheduler.totals.prompt_tokens == 0


def test_more_tokens_than_max_tokens_are_finished_at_once() -> None:
    assert heard_of(wire(), max_tokens=2, resume=[7, 7, 7]) == ([], FinishCause.MAX_TOKENS)


def test_tokens_that_fill_the_context_are_finished_at_once() -> None:
    assert heard_of(wire(), resume=[7] * 18) == ([], FinishCause.MAX_TOKENS)


@pytest.mark.parametrize(("resume_len", "more"), [(3, 0), (2, 1)])
def test_tokens_that_fill_the_pool_are_finished_at_once(resume_len: int, more: int) -> None:
    """A pool of 8 tokens: the ninth is sampled, and nothing can be computed of it."""
    joined = wire(num_pages=2)
    answer = truth_of(submission(1, PROMPT), joined.runner.description).answer
    assert len(answer) == 3
    heard = heard_of(joined, resume=answer[:resume_len])
    assert heard == (answer[3 - more :], FinishCause.CACHE_FULL)


def test_a_resumed_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        wire().core.submit(1, submission(1, resume=[16]))
    assert caught.value.reason is Reason.TOKEN_OUT_OF_VOCAB
    assert caught.value.metadata == {"field": "resume_token_ids"}
