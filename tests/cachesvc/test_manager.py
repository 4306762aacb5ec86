"""Pages of rows and of the tree: which locs a row gets, what it shares, and what counters hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachesvc.integrity import check_integrity
from cachesvc.ledger import ChangeReason
from cachesvc.manager import CacheManager, IntegrityError
from cachesvc.page_pool import PoolError
from cachesvc.prefix_tree import TreeError
from cachesvc.rows import RowSteps
from tests.cachesvc.builders import ints, locs_of, new_manager, open_row, request


def manager_with_rows(*lens: int, **changes: object) -> CacheManager:
    """Rows 0, 1, … with pages for so many tokens each, no two of which begin alike."""
    manager = new_manager(**changes)
    for idx, length in enumerate(lens):
        open_row(manager, request(idx + 1, [idx] * length), generation=idx + 1)
    return manager


def compute_all(manager: CacheManager, idx: int) -> None:
    """A plan that stores every known token of a row was sent."""
    manager.rows.cached_len[idx] = manager.rows.known_len[idx]


def close(manager: CacheManager, idx: int) -> None:
    manager.close_row(idx, ChangeReason.FINISHED)


def counts(manager: CacheManager) -> tuple[int, int, int, int]:
    """Free, evictable, locked and private pages."""
    check_integrity(manager)
    tree = manager.tree
    return (
        manager.pool.free_count,
        tree.evictable_count,
        tree.locked_count,
        manager.private_count,
    )


def test_a_write_covers_the_whole_pages_of_all_rows_in_their_order() -> None:
    manager = manager_with_rows(2, 2, page_size=2)
    write = manager.grow(ints(1, 0))
    assert write.rows.tolist() == [1, 1, 0, 0]
    assert write.positions.tolist() == [2, 3, 2, 3]
    assert write.locs.tolist() == [4, 5, 6, 7]


def test_growth_goes_on_behind_the_pages_that_a_row_has() -> None:
    manager = manager_with_rows(4, 4)
    write = manager.grow(ints(0))
    assert write.positions.tolist() == [4, 5, 6, 7]
    assert write.locs.tolist() == [8, 9, 10, 11]
    manager.grow(ints(0))
    assert manager.first_locs(0).tolist() == [0, 8, 12]
    assert locs_of(manager, 0) == [0, 1, 2, 3, *range(8, 16)]


def test_only_rows_at_the_end_of_their_pages_need_one() -> None:
    manager = manager_with_rows(3, 4, 7)
    for idx in (0, 1, 2):
        compute_all(manager, idx)
    assert manager.at_page_end(ints(2, 1, 0)).tolist() == [1]


def test_the_plan_that_fills_a_page_is_noted_whole_or_by_its_last_token() -> None:
    manager = manager_with_rows(11, 4, 2)
    rows, cached_lens, extend_lens = ints(0, 1, 2), ints(1, 3, 0), ints(9, 1, 2)
    nothing = ints(0, 0, 0)
    steps = RowSteps(rows, cached_lens, extend_lens, nothing, nothing > 0, ints())
    manager.note_filled(7, steps)
    assert manager.filled_by.tolist() == [7, 7, 0, 7, 0, 0, 0, 0]


def test_nothing_changes_when_the_pool_cannot_serve_all_rows() -> None:
    manager = manager_with_rows(4, 4, num_pages=3)
    with pytest.raises(TreeError):
        manager.grow(ints(0, 1))
    assert counts(manager) == (1, 0, 0, 2)


def test_the_private_pages_of_a_closed_row_are_free_and_given_out_in_their_order() -> None:
    manager = manager_with_rows(8, 4, num_pages=3)
    close(manager, 0)
    assert counts(manager) == (2, 0, 0, 1)
    for _ in range(2):
        manager.grow(ints(1))
    assert manager.first_locs(1).tolist() == [8, 0, 4]


def test_a_row_is_closed_once() -> None:
    """A second close put the row on the list of unused rows twice: two requests then shared it."""
    manager = manager_with_rows(4)
    close(manager, 0)
    with pytest.raises(PoolError, match="row 0"):
        close(manager, 0)
    assert manager.rows.unused_count == 3


def test_the_counters_hold_the_equation() -> None:
    manager = manager_with_rows(9, 4)
    assert counts(manager) == (4, 0, 0, 4)
    manager.check_counters()
    manager.rows.num_pages[1] += 1
    told = r"free 4 \+ evictable 0 \+ locked 0 \+ private 5 \+ quarantined 0 != num_pages 8"
    with pytest.raises(IntegrityError, match=told):
        manager.check_counters()


class TestSharing:
    """Full pages of known ids go into the tree; what it has already is not kept twice."""

    def test_full_pages_are_locked_while_the_row_runs_and_evictable_after(self) -> None:
        manager = manager_with_rows(9)
        compute_all(manager, 0)
        assert manager.share(ints(0)) == {}
        assert counts(manager) == (5, 0, 2, 1)
        close(manager, 0)
        assert counts(manager) == (6, 2, 0, 0)

    def test_a_page_with_an_unknown_id_stays_private(self) -> None:
        manager = manager_with_rows(7)
        manager.rows.cached_len[0] = 8  # a plan stores what it samples for position 7
        manager.share(ints(0))
        assert counts(manager) == (6, 0, 1, 1)

    def test_a_page_whose_plan_was_not_sent_stays_private(self) -> None:
        manager = manager_with_rows(8)
        manager.rows.cached_len[0] = 7
        manager.share(ints(0))
        assert counts(manager) == (6, 0, 1, 1)

    def test_a_duplicate_is_free_and_its_row_points_at_the_page_of_the_tree(self) -> None:
        manager = new_manager()
        for generation in (1, 2):
            open_row(manager, request(generation, [5, 5, 5, 5, generation]), generation)
        for idx in (0, 1):
            compute_all(manager, idx)
        assert manager.share(ints(0)) == {}
        write = manager.share(ints(1))[1]
        assert write.rows.tolist() == [1, 1, 1, 1]
        assert write.positions.tolist() == write.locs.tolist() == [0, 1, 2, 3]
        assert manager.first_locs(1).tolist() == [0, 12]
        assert counts(manager) == (5, 0, 1, 2)

    def test_a_failed_row_shares_nothing(self) -> None:
        manager = manager_with_rows(8)
        compute_all(manager, 0)
        manager.close_row(0, ChangeReason.FAILED)
        assert counts(manager) == (8, 0, 0, 0)

    def test_prompts_are_shared_at_once_and_samples_a_stride_at_a_time(self) -> None:
        manager = manager_with_rows(4)
        manager._share_stride_pages = 2
        compute_all(manager, 0)
        assert manager.rows_to_share(ints(0)).tolist() == [0]
        manager.share(ints(0))
        manager.rows.has_sampled[0] = True
        for known_len, due in ((8, []), (11, []), (12, [0])):
            manager.rows.known_len[0] = manager.rows.cached_len[0] = known_len
            assert manager.rows_to_share(ints(0)).tolist() == due


class TestHits:
    """A row opens on what is cached of its request."""

    def test_it_starts_behind_the_cached_pages_and_leaves_a_token_to_compute(self) -> None:
        manager = manager_with_rows(8)
        compute_all(manager, 0)
        close(manager, 0)
        idx, write = manager.open_row(again := request(2, [0] * 8), 2, manager.find_prefix(again))
        assert manager.rows.cached_len[idx] == 4
        assert write.locs.tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
        assert counts(manager) == (5, 1, 1, 1)

    def test_pages_are_evicted_for_a_row_that_grows_the_least_recently_used_first(self) -> None:
        manager = new_manager(num_pages=3)
        for nth, token_id in enumerate((7, 8)):
            idx = open_row(manager, request(nth, [token_id] * 5), nth + 1)
            compute_all(manager, idx)
            close(manager, idx)
        assert counts(manager) == (1, 2, 0, 0)
        open_row(manager, request(3, [9] * 5), 3)
        assert manager.find_prefix(request(4, [7] * 5)).num_pages == 0
        assert manager.find_prefix(request(5, [8] * 5)).num_pages == 1

    def test_what_a_match_would_lock_does_not_count_as_room(self) -> None:
        """Three pages are evictable and one is free; the match takes two of them."""
        manager = manager_with_rows(12, num_pages=4)
        compute_all(manager, 0)
        close(manager, 0)
        longer = request(2, [0] * 8 + [1] * 13)
        match = manager.find_prefix(longer)
        assert (match.num_pages, manager.lacking_pages(longer, match)) == (2, 2)

    def test_flush_evicts_what_no_row_holds(self) -> None:
        manager = manager_with_rows(8, 8)
        for idx in (0, 1):
            compute_all(manager, idx)
            manager.share(ints(idx))
        close(manager, 0)
        assert manager.flush() == 2
        assert counts(manager) == (6, 0, 2, 0)


class TestDroppingRows:
    """After a refusal the tree keeps what plans up to the last accepted one filled."""

    def test_pages_of_later_plans_and_all_behind_them_go(self) -> None:
        manager = manager_with_rows(16)
        compute_all(manager, 0)
        manager.filled_by[:4] = [1, 2, 3, 2]
        manager.share(ints(0))
        manager.drop_rows(2, ChangeReason.REFUSED)
        assert counts(manager) == (6, 2, 0, 0)
        assert manager.rows.unused_count == 3

    def test_everything_goes_when_the_memory_is_another(self) -> None:
        manager = manager_with_rows(8, 4)
        compute_all(manager, 0)
        manager.filled_by[:2] = 1
        manager.share(ints(0))
        manager.drop_rows(0, ChangeReason.VOIDED)
        assert counts(manager) == (8, 0, 0, 0)


@settings(derandomize=True, deadline=None)
@given(
    page_size=st.sampled_from((1, 2, 4)),
    num_pages=st.integers(1, 10),
    moves=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=40),
)
def test_every_page_has_one_owner_whatever_rows_do(
    page_size: int, num_pages: int, moves: list[tuple[int, int]]
) -> None:
    """Against a model that only counts: at 0 a row closes, else it opens or grows by a page."""
    manager = new_manager(page_size=page_size, num_pages=num_pages)
    pages_of: dict[int, int] = {}
    for generation, (idx, move) in enumerate(moves):
        is_full = sum(pages_of.values()) == num_pages
        if move == 0:
            if pages_of.pop(idx, None) is not None:
                close(manager, idx)
        elif idx in pages_of and is_full:
            with pytest.raises(TreeError):
                manager.grow(ints(idx))
        elif idx in pages_of:
            write = manager.grow(ints(idx))
            assert len(write.locs) == page_size
            assert write.locs[0] % page_size == 0
            pages_of[idx] += 1
        elif not is_full:
            opened = open_row(manager, request(generation + 1, [generation]), generation)
            pages_of[opened] = 1
        assert counts(manager)[1:] == (0, 0, sum(pages_of.values()))
