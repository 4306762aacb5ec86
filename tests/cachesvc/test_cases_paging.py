"""Public bug reports about pages and prefix caches, as inputs to this manager.

Case 1.2 is in `test_healing.py`, case 2.4 and the leads about a tree's nodes in
`test_prefix_tree.py` and `test_eviction_order.py`.
"""

from __future__ import annotations

import numpy as np
import pytest

from cachesvc.integrity import check_integrity
from cachesvc.manager import CacheManager
from cachesvc.request import FinishCause
from tests.cachesvc.builders import locs_of, submission
from tests.cachesvc.truth import truth_of
from tests.cachesvc.wire import Wire, wire

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]


def manager_of(joined: Wire) -> CacheManager:
    assert joined.core.scheduler is not None
    return joined.core.scheduler.manager


def run_alone(joined: Wire, key: int, prompt: list[int], **changes: object) -> None:
    joined.core.submit(1, submission(key, prompt, **changes))
    joined.run_until_idle()


def check_answer(joined: Wire, key: int, prompt: list[int], **changes: object) -> None:
    """The request got what it would get alone in a pool without end."""
    truth = truth_of(submission(key, prompt, **changes), joined.runner.description)
    assert joined.heard.tokens[1, key] == truth.answer
    assert joined.heard.cause(key) is truth.cause


@pytest.mark.parametrize("page_size", [1, 4])
def test_case_1_1_a_row_points_at_the_pages_of_the_tree_once_its_own_copies_are_free(
    page_size: int,
) -> None:
    """sgl-project/mini-sglang PR #142: copies of a prefix that the tree had were freed, and the row
    of the page table went on to point at them.
    """
    joined = wire(page_size=page_size, num_pages=32 // page_size, num_rows=3)
    manager, rows = manager_of(joined), manager_of(joined).rows
    for key in (1, 2):
        joined.core.submit(1, submission(key, PROMPT, max_tokens=6))
    first = joined.send()
    assert first is not None
    assert first.step_cached_lens.tolist() == [0, 0], "both were computed in one step"
    copies = locs_of(manager, 1)[:8]
    joined.send()
    assert locs_of(manager, 1)[:8] == locs_of(manager, 0)[:8] != copies
    assert rows.tail[0] is rows.tail[1]
    assert rows.tail[1] is not None
    assert rows.tail[1].ref_count == 2
    joined.core.submit(1, submission(3, [9] * 9, max_tokens=2))
    joined.deliver_all()
    joined.send()
    in_rows = {loc for idx in range(3) for loc in locs_of(manager, idx)}
    assert in_rows & set(copies), "the copies were given out again"
    free = {int(loc) + nth for loc in manager.pool.free_pages for nth in range(page_size)}
    assert free.isdisjoint(in_rows)
    joined.run_until_idle()
    for key in (1, 2):
        check_answer(joined, key, PROMPT, max_tokens=6)
    check_answer(joined, 3, [9] * 9, max_tokens=2)
    check_integrity(manager)


def test_case_1_4_a_request_is_preempted_when_pages_are_short_though_tokens_are_not() -> None:
    """sgl-project/sglang PR #6731: free tokens were counted where pages are needed. Six requests
    need a page each and five are free, 20 tokens.
    """
    joined = wire(num_rows=6, num_pages=11, credits=1)
    for key in range(1, 7):
        joined.core.submit(1, submission(key, [key] * 4, max_tokens=6))
    joined.step()
    manager = manager_of(joined)
    assert (manager.pool.free_count, manager.tree.evictable_count) == (5, 0)
    plan = joined.step()
    assert plan is not None
    assert joined.core.scheduler is not None
    assert joined.core.scheduler.totals.preempted == 1
    assert (plan.close_rows.tolist(), len(plan.step_rows)) == ([5], 5)
    joined.run_until_idle()
    for key in range(1, 7):
        check_answer(joined, key, [key] * 4, max_tokens=6)


def test_case_1_6_a_request_that_does_not_fit_waits_without_holding_or_evicting_its_prefix() -> (
    None
):
    """vllm-project/vllm PR #11565: admission locked the matched prefix before it knew whether the
    rest fits, or counted those pages as available. Of 8 pages the prefix has 4, which nobody holds,
    a running request 3; the newcomer needs 3 beside the prefix, and free + evictable says 5.
    """
    joined = wire(page_size=1, num_pages=8, credits=4)
    run_alone(joined, 1, [1, 2, 3, 4], max_tokens=1)
    joined.core.submit(1, submission(2, [9, 9, 9], max_tokens=1))
    joined.send()
    newcomer = [1, 2, 3, 4, 5, 6, 7]
    joined.core.submit(1, submission(3, newcomer, max_tokens=1))
    manager = manager_of(joined)
    for _ in range(1000):
        assert joined.send() is None
    assert (manager.pool.free_count, manager.tree.evictable_count) == (1, 4)
    check_integrity(manager)
    prefix = np.array(newcomer, dtype=np.int32).tobytes()
    match = manager.tree.match(prefix, "", 7)
    assert (match.num_pages, manager.tree.evictable_in(match)) == (4, 4)
    joined.run_until_idle()
    assert joined.heard.cached_len[1, 3] == 4
    check_answer(joined, 3, newcomer, max_tokens=1)


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("prompt_len", [1, 4, 7, 8, 9])
def test_case_2_1_a_prompt_that_is_cached_as_a_whole_leaves_a_token_to_compute(
    page_size: int, prompt_len: int
) -> None:
    """GeeeekExplorer/nano-vllm issue #144: a prompt of whole pages, all cached, left a query of
    length 0.
    """
    prompt = list(range(1, prompt_len + 1))
    joined = wire(page_size=page_size, num_pages=64 // page_size, num_rows=3)
    joined.core.submit(1, submission(1, prompt, seed=5, max_tokens=9))
    joined.step()
    joined.step()
    joined.core.submit(1, submission(2, prompt, seed=5, max_tokens=9))  # while the first decodes
    joined.run_until_idle()
    run_alone(joined, 3, prompt, seed=5, max_tokens=9)  # after both ended
    for key in (1, 2, 3):
        check_answer(joined, key, prompt, seed=5, max_tokens=9)
    whole_pages_but_a_token = (prompt_len - 1) // page_size * page_size
    assert [joined.heard.cached_len[1, key] for key in (2, 3)] == [whole_pages_but_a_token] * 2
    for plan in joined.sent:
        assert (plan.step_extend_lens >= 1).all()


def test_case_2_3_pages_are_shared_once_they_are_computed_and_positions_go_on_behind_them() -> None:
    """Wenyueh/MinivLLM PR #98: a second copy of a prompt shared pages whose K and V were not
    computed yet, or ignored them and began at position 0 again.
    """
    prompt = [1 + nth % 13 for nth in range(300)]
    other = prompt[:256] + [15] * 44
    joined = wire(budget=1024, page_size=16, num_pages=96, num_rows=4, max_seq_len=512)
    for key in (1, 2):
        joined.core.submit(1, submission(key, prompt, max_tokens=20))
    first = joined.step()
    joined.core.submit(1, submission(3, prompt, max_tokens=20))
    second = joined.step()
    joined.core.submit(1, submission(4, other, max_tokens=20))
    third = joined.step()
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.step_cached_lens.tolist() == [0, 0]
    assert second.step_cached_lens[-1] == 288, "18 whole pages"
    assert third.step_cached_lens[-1] == 256
    joined.run_until_idle()
    for key, asked in ((1, prompt), (2, prompt), (3, prompt), (4, other)):
        check_answer(joined, key, asked, max_tokens=20)


# Further leads of kind 1


def test_lead_the_last_page_of_a_request_is_freed_once_whatever_ends_it() -> None:
    """sgl-project/sglang-jax PR #982: two paths released the last decode page on finish. Here it
    finishes, is stopped and is cancelled before its row is closed.
    """
    joined = wire()
    joined.core.submit(1, submission(1, [1, 2, 3, 4, 5], max_tokens=2))
    joined.send()
    joined.send()
    joined.deliver_plan()
    joined.deliver_plan()
    joined.execute()
    joined.execute()
    for answer in joined.answers:
        joined.core.result(answer)  # type: ignore[arg-type] # none is a refusal
    joined.answers.clear()
    joined.core.stop(1, 1)
    joined.core.cancel(1, 1)
    joined.run_until_idle()
    manager = manager_of(joined)
    assert (manager.pool.free_count, manager.tree.evictable_count) == (7, 1)
    check_integrity(manager)


def test_lead_pages_in_use_come_back_to_zero_after_every_request() -> None:
    """xLLM-AI/xllm #828: the counter of used pages grew for ever when pages were cached before they
    were freed, and use went over 100 %.
    """
    joined = wire(num_pages=8)
    manager = manager_of(joined)
    for key in range(1, 61):
        run_alone(joined, key, [key % 5, 1, 2, 3, 4, 5, 6, 7, 8], max_tokens=4)
        assert manager.used_count == 0
        assert manager.available_count == 8
    assert joined.core.totals.max_used_pages <= 8


def test_lead_a_prompt_shorter_than_a_page_is_neither_cached_nor_matched() -> None:
    """sgl-project/sglang PR #10637: a key shorter than a page has to be an empty match."""
    joined = wire()
    for key in (1, 2):
        run_alone(joined, key, [1, 2, 3], max_tokens=1)
        assert joined.heard.cached_len[1, key] == 0
        assert joined.heard.cause(key) is FinishCause.MAX_TOKENS
    assert manager_of(joined).tree.evictable_count == 0
