"""How far healing goes: damage that is no claim, faults that come back, and when health turns."""

from __future__ import annotations

import pytest

from cachesvc.healing import MAX_IN_A_ROW, PLANS_THAT_HELD
from cachesvc.manager import CacheManager
from cachesvc.prefix_tree import TreeError
from cachesvc.request import FinishCause
from tests.cachesvc.broken_books import the_evictable_counter_is_one_too_high
from tests.cachesvc.builders import submission
from tests.cachesvc.test_healing import manager_of, three_nodes, three_nodes_and_two_rows
from tests.cachesvc.truth import truth_of
from tests.cachesvc.wire import Wire, wire


def answers_are_undisturbed(joined: Wire, wanted: dict[int, list[int]], max_tokens: int) -> bool:
    runner = joined.runner.description
    return all(
        joined.heard.tokens[1, key]
        == truth_of(submission(key, prompt, max_tokens=max_tokens), runner).answer
        for key, prompt in wanted.items()
    )


class TestLocsOutsideThePool:
    """They raised out of the recount, and ended the process that was to heal them."""

    def test_the_row_that_is_mapped_there_fails_and_its_neighbour_goes_on(self) -> None:
        joined = three_nodes_and_two_rows()
        manager_of(joined).page_table.locs[0, 4:8] += 4000
        (told, *_) = joined.core.check_integrity()
        assert "row 0 of 'request-3' is mapped outside the pool" in told
        assert joined.core.check_integrity() == []
        joined.run_until_idle()
        assert joined.heard.cause(3) is FinishCause.FAILED
        assert answers_are_undisturbed(joined, {4: [5] * 4}, 6)

    def test_the_tree_loses_a_node_that_has_one(self) -> None:
        joined = three_nodes()
        node = list(manager_of(joined).tree.nodes())[-1]
        node.locs = (1 << 20).to_bytes(4, "little") + node.locs[4:]
        assert any("first loc 1048576" in told for told in joined.core.check_integrity())
        assert joined.core.check_integrity() == []

    def test_a_row_that_closes_with_one_is_healed_in_mid_step(self) -> None:
        joined = three_nodes_and_two_rows()
        manager_of(joined).page_table.locs[0, 4:8] += 4000
        joined.core.cancel(1, 3)
        joined.run_until_idle()
        assert joined.core.healer.healed_total == 1
        assert joined.core.check_integrity() == []
        assert answers_are_undisturbed(joined, {4: [5] * 4}, 6)


def test_a_leaf_that_is_nobodys_child_is_healed_when_it_is_evicted() -> None:
    """An assertion of the tree ended the process."""
    joined = wire(num_pages=3)
    for key in (1, 2):
        joined.core.submit(1, submission(key, [key] * 4, max_tokens=1))
        joined.run_until_idle()
    root = next(iter(manager_of(joined).tree.nodes()))
    assert root.children is not None
    root.children.pop(next(iter(root.children)))
    joined.core.submit(1, submission(3, [3] * 8, max_tokens=4))
    joined.run_until_idle()
    assert joined.core.healer.healed_total >= 1
    assert answers_are_undisturbed(joined, {3: [3] * 8}, 4)
    assert joined.core.check_integrity() == []


def test_books_that_fail_again_at_once_begin_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = three_nodes_and_two_rows()
    right, failures = CacheManager.check_counters, 3  # after two steps, and in a recount

    def fails(self: CacheManager) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise TreeError("planted")
        right(self)

    joined.deliver_all()
    monkeypatch.setattr(CacheManager, "check_counters", fails)
    joined.send()
    assert manager_of(joined).tree.evictable_count == 0, "nothing is cached any more"
    joined.run_until_idle()
    assert answers_are_undisturbed(joined, {3: [1] * 4 + [4] * 3, 4: [5] * 4}, 6)
    assert joined.core.check_integrity() == []


class TestHealth:
    """Faults that come back turn it; faults far apart do not."""

    def heal_once(self, joined: Wire) -> None:
        assert the_evictable_counter_is_one_too_high(manager_of(joined))
        assert joined.core.check_integrity()

    def test_it_turns_after_faults_in_a_row_and_back_with_a_recount_that_finds_none(self) -> None:
        joined = three_nodes()
        for _ in range(MAX_IN_A_ROW):
            assert joined.core.serving
            self.heal_once(joined)
        assert not joined.core.serving
        assert joined.core.check_integrity() == []
        assert joined.core.serving

    def test_faults_with_many_good_plans_in_between_are_not_in_a_row(self) -> None:
        """Three in a month turned the health of a server that was never idle."""
        joined = three_nodes()
        for _ in range(MAX_IN_A_ROW + 1):
            self.heal_once(joined)
            for _ in range(PLANS_THAT_HELD):
                joined.core.healer.held()
        assert joined.core.serving
