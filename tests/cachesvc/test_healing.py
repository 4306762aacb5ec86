"""Books that do not add up: the rule is named, what touched the fault fails, all else goes on."""

from __future__ import annotations

import pytest

from cachesvc.inspect_pages import page_report
from cachesvc.integrity import IntegrityError, check_integrity, recount
from cachesvc.ledger import PageState
from cachesvc.manager import CacheManager
from cachesvc.request import FinishCause
from servicekit.errors import InvalidArgument, Reason
from tests.cachesvc.broken_books import (
    DAMAGES,
    Damage,
    a_lock_leaks,
    a_node_that_nobody_holds_counts_as_locked,
    a_page_is_in_two_nodes,
    a_page_leaks,
    a_page_of_a_row_belongs_to_another_too,
    a_page_of_a_row_is_free_too,
    a_page_of_the_tree_is_free_too,
    requests_that_touch_the_fault,
    the_evictable_counter_is_one_too_high,
)
from tests.cachesvc.builders import submission
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.truth import truth_of
from tests.cachesvc.wire import Wire, wire

FIRST, SECOND = [1] * 4 + [2] * 4, [1] * 4 + [3] * 4
THIRD, FOURTH = [1] * 4 + [4] * 3, [5] * 4


def manager_of(joined: Wire) -> CacheManager:
    assert joined.core.scheduler is not None
    return joined.core.scheduler.manager


def three_nodes(**changes: object) -> Wire:
    """An idle manager that caches page [1 1 1 1] in a node, and [2 2 2 2], [3 3 3 3] behind it."""
    joined = wire(**changes)
    for key, prompt in enumerate((FIRST, SECOND), start=1):
        joined.core.submit(1, submission(key, prompt, max_tokens=1))
        joined.run_until_idle()
    return joined


def three_nodes_and_two_rows() -> Wire:
    """On the same tree run request 3, on [1 1 1 1] and a page of its own, and 4, whose [5 5 5 5] is
    in the tree too; both have sampled a token and have two plans on their way.
    """
    joined = three_nodes()
    joined.core.submit(1, submission(3, THIRD, max_tokens=6))
    joined.core.submit(1, submission(4, FOURTH, max_tokens=6))
    joined.step()
    joined.send()
    joined.send()
    return joined


def check_the_end(joined: Wire, *, failed: set[int]) -> None:
    """Left alone, every request has its answer but for those that failed, and all pages that are
    not quarantined come back.
    """
    joined.run_until_idle()
    for key, prompt in ((3, THIRD), (4, FOURTH)):
        if key in failed:
            assert joined.heard.cause(key) is FinishCause.FAILED
            continue
        truth = truth_of(submission(key, prompt, max_tokens=6), joined.runner.description)
        assert (joined.heard.tokens[1, key], joined.heard.cause(key)) == (truth.answer, truth.cause)
    manager = manager_of(joined)
    assert joined.core.check_integrity() == []
    assert manager.available_count == manager.usable_count
    assert joined.runner.refusals == []


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (a_page_is_in_two_nodes, "claimed by the prefix tree and the prefix tree"),
        (a_page_of_the_tree_is_free_too, "claimed by the free list and the prefix tree"),
        (the_evictable_counter_is_one_too_high, "counters say evictable 4, locked 0; the nodes"),
        (a_node_that_nobody_holds_counts_as_locked, "counters say evictable 2, locked 1; the node"),
        (a_page_leaks, "of nobody"),
    ],
)
def test_case_1_2_the_full_check_names_the_rule_that_is_broken(damage: Damage, rule: str) -> None:
    """sgl-project/mini-sglang issue #149: the idle check added two counters, so drifted counters
    and a page with two owners passed.
    """
    joined = three_nodes()
    manager = manager_of(joined)
    check_integrity(manager)
    assert damage(manager)
    with pytest.raises(IntegrityError, match=rule):
        check_integrity(manager)


def test_a_violation_tells_the_page_its_last_changes_and_the_plan() -> None:
    joined = three_nodes()
    assert a_page_of_the_tree_is_free_too(manager_of(joined))
    assert joined.core.check_integrity()[0] == (
        "plan 5: page 1: claimed by the free list and the prefix tree "
        "(plan 1 ALLOCATED for request 0; plan 2 SHARED for request 0; "
        "plan 2 FINISHED for request 0)"
    )


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_books_are_healed_and_who_did_not_touch_the_fault_gets_the_same_answer(
    damage: Damage,
) -> None:
    joined = three_nodes_and_two_rows()
    manager = manager_of(joined)
    assert damage(manager)
    twice = set(recount(manager).claimed_twice.tolist())
    touched = {req.key for req in requests_that_touch_the_fault(manager)}
    assert joined.core.check_integrity() != []
    check_integrity(manager)
    assert manager.quarantined == twice
    check_the_end(joined, failed=touched)


def test_both_requests_that_have_a_page_fail_and_the_third_does_not() -> None:
    joined = three_nodes_and_two_rows()
    joined.core.submit(1, submission(5, [6, 6, 6], max_tokens=4))
    manager = manager_of(joined)
    assert a_page_of_a_row_belongs_to_another_too(manager)
    joined.core.check_integrity()
    check_the_end(joined, failed={3, 4})
    failure = joined.heard.finished[1, 3].failure
    assert failure is not None
    assert failure.reason is Reason.INTERNAL
    assert joined.heard.cause(5) is FinishCause.MAX_TOKENS


@pytest.mark.parametrize(
    "damage", [the_evictable_counter_is_one_too_high, a_page_leaks, a_page_of_the_tree_is_free_too]
)
def test_the_counters_after_a_plan_show_it_and_all_rows_start_over(damage: Damage) -> None:
    """On what is cached, with the same tokens, while plans of before are still on their way."""
    joined = three_nodes_and_two_rows()
    joined.deliver_plan()
    joined.execute()
    joined.deliver_answer()
    assert damage(manager_of(joined))
    plan = joined.send()
    assert plan is not None
    assert plan.reset_rows
    assert joined.core.healer.healed_total == 1
    check_integrity(manager_of(joined))
    check_the_end(joined, failed=set())


def test_a_page_that_is_freed_twice_in_mid_step_fails_its_request_alone() -> None:
    joined = three_nodes_and_two_rows()
    assert a_page_of_a_row_is_free_too(manager_of(joined))
    joined.core.cancel(1, 4)
    joined.deliver_all()
    plan = joined.send()
    assert plan is not None
    assert plan.reset_rows
    joined.run_until_idle()
    assert joined.heard.cause(3) is FinishCause.FAILED
    assert joined.core.check_integrity() == []


def test_a_request_that_ended_just_now_puts_no_page_that_was_claimed_twice_into_the_tree() -> None:
    """Its row is closed with the next plan, and closing shares what the row computed: the row,
    which owned nothing any more, shared pages that were free or in quarantine.
    """
    joined = wire()
    joined.core.submit(1, submission(1, FIRST, max_tokens=1))
    joined.send()
    joined.deliver_all()
    assert a_page_of_a_row_is_free_too(manager_of(joined))
    assert joined.core.check_integrity() != []
    joined.run_until_idle()
    assert joined.heard.cause(1) is FinishCause.MAX_TOKENS
    assert joined.core.check_integrity() == []


def test_a_row_without_a_full_page_keeps_its_root_while_books_are_healed() -> None:
    """The empty root was dropped although a row held it: what the row shared later was in no tree
    and in no count.
    """
    joined = wire()
    joined.core.submit(1, submission(1, [1, 2, 3], max_tokens=6))
    joined.step()
    assert a_page_leaks(manager_of(joined))
    assert joined.core.check_integrity() != []
    joined.run_until_idle()
    assert joined.core.check_integrity() == []
    assert manager_of(joined).tree.evictable_count == 2


def test_a_counter_that_promises_too_much_is_found_when_the_last_leaf_is_gone() -> None:
    """Two rows need a page each, one is evictable and two are counted. It was an IndexError, which
    nothing caught.
    """
    joined = wire(num_pages=3)
    joined.core.submit(1, submission(1, [9] * 4, max_tokens=1))
    joined.run_until_idle()
    for key in (3, 4):
        joined.core.submit(1, submission(key, [key] * 3, max_tokens=3))
    joined.step()
    assert the_evictable_counter_is_one_too_high(manager_of(joined))
    joined.run_until_idle()
    assert joined.core.healer.healed_total == 1
    for key in (3, 4):
        wanted = submission(key, [key] * 3, max_tokens=3)
        assert joined.heard.tokens[1, key] == truth_of(wanted, joined.runner.description).answer
    assert joined.core.check_integrity() == []


def test_requests_that_are_admitted_when_the_books_fail_are_not_forgotten() -> None:
    """Request 3 had a row, and 4 was out of the queue, when the pages for 4 were not there: neither
    was in the queue or among those that run, and nobody ever heard of them again.
    """
    joined = three_nodes(max_seq_len=64)
    joined.core.submit(1, submission(5, [7], max_tokens=8))
    joined.step()
    manager_of(joined).tree.evictable_count += 3  # 3 are, of 8; request 5 has one
    joined.core.submit(1, submission(3, [8], max_tokens=2))
    joined.core.submit(1, submission(4, [9] * 26, max_tokens=2))
    joined.run_until_idle()
    assert joined.core.healer.healed_total == 1
    assert [joined.heard.cause(key) for key in (3, 4)] == [FinishCause.MAX_TOKENS] * 2
    assert {3, 4} <= {key for _, key in joined.heard.cached_len}, "told that they were admitted"
    assert joined.core.check_integrity() == []


def test_a_prompt_larger_than_what_is_not_in_quarantine_is_refused_at_once() -> None:
    """It was admitted to the queue, where it waited for ever and everybody behind it."""
    joined = three_nodes(max_seq_len=64)
    assert a_page_of_the_tree_is_free_too(manager_of(joined))
    joined.core.check_integrity()
    joined.core.submit(1, submission(3, [9] * 27, max_tokens=1))
    with pytest.raises(InvalidArgument, match="28 tokens and the page pool holds 28"):
        joined.core.submit(1, submission(4, [9] * 28, max_tokens=1))
    joined.run_until_idle()
    assert joined.heard.cause(3) is FinishCause.MAX_TOKENS


def test_a_request_that_waits_for_more_pages_than_are_left_ends_with_what_it_has() -> None:
    """It sampled its ninth token in a pool of two pages when the books failed: it could not be
    admitted any more, and waited for ever.
    """
    joined = wire(num_pages=2, credits=1)
    wanted = submission(1, [1, 2, 3])
    joined.core.submit(1, wanted)
    for _ in range(6):
        joined.step()
    assert len(joined.heard.tokens[1, 1]) == 6
    assert the_evictable_counter_is_one_too_high(manager_of(joined))
    joined.run_until_idle()
    truth = truth_of(wanted, joined.runner.description)
    assert (joined.heard.tokens[1, 1], joined.heard.cause(1)) == (truth.answer, truth.cause)


def test_the_ledger_hears_of_every_page_that_a_heal_moved() -> None:
    """It told pages of a request that failed as locked, and those of a lost lock too."""
    joined = three_nodes()
    assert a_lock_leaks(manager_of(joined))
    joined.core.submit(1, submission(3, THIRD, max_tokens=6))
    joined.step()
    assert a_page_of_a_row_is_free_too(manager_of(joined))
    joined.core.check_integrity()
    states = [page_report(joined.core, page_id) for page_id in range(8)]
    assert [report.changes[-1].state for report in states if report.changes] == [
        report.state for report in states if report.changes
    ]
    assert [report.state for report in states[:4]] == [
        PageState.EVICTABLE,
        PageState.EVICTABLE,
        PageState.EVICTABLE,
        PageState.QUARANTINED,
    ]


def test_a_page_in_quarantine_is_free_on_another_runner() -> None:
    joined = three_nodes()
    assert a_page_of_the_tree_is_free_too(manager_of(joined))
    joined.core.check_integrity()
    assert page_report(joined.core, 1).state is PageState.QUARANTINED
    joined.cut()
    joined.runner = FakeRunner(joined.runner.description, "boot-2")
    joined.attach()
    report = page_report(joined.core, 1)
    assert (report.state, report.changes[-1].state) == (PageState.FREE, PageState.FREE)
