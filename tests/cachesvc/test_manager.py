"""Pages of rows: which locs a row gets, when none are needed, and what a check notices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachesvc.manager import CacheManager, IntegrityError
from cachesvc.page_pool import PoolError
from tests.cachesvc.builders import describe, ints, request


def manager_with_rows(*lens: int, **changes: object) -> CacheManager:
    """Rows 0, 1, … with pages for so many tokens each."""
    manager = CacheManager(describe(**changes))
    for idx, length in enumerate(lens):
        manager.open_row(request(idx + 1), generation=idx + 1)
        manager.grow(ints(idx), ints(length))
    return manager


def test_a_write_covers_the_whole_pages_of_all_rows_in_their_order() -> None:
    manager = manager_with_rows(0, 0, page_size=2)
    write = manager.grow(ints(1, 0), ints(3, 2))
    assert write.rows.tolist() == [1, 1, 1, 1, 0, 0]
    assert write.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert write.locs.tolist() == [0, 1, 2, 3, 4, 5]


def test_growth_goes_on_behind_the_pages_that_a_row_has() -> None:
    manager = manager_with_rows(4, 4)
    write = manager.grow(ints(0), ints(9))
    assert write.positions.tolist() == [4, 5, 6, 7, 8, 9, 10, 11]
    assert write.locs.tolist() == [8, 9, 10, 11, 12, 13, 14, 15]
    assert manager.first_locs(0).tolist() == [0, 8, 12]
    assert manager.locs(0).tolist() == [0, 1, 2, 3, *range(8, 16)]


def test_growth_inside_a_page_allocates_nothing() -> None:
    manager = manager_with_rows(1)
    write = manager.grow(ints(0), ints(4))
    assert len(write.rows) == len(write.positions) == len(write.locs) == 0
    assert (manager.pool.free_count, manager.private_count) == (7, 1)


def test_missing_pages_counts_by_row() -> None:
    manager = manager_with_rows(1, 5)
    assert manager.missing_pages(ints(0, 1), ints(5, 8)).tolist() == [1, 0]
    assert manager.missing_pages(ints(0, 1), ints(17, 1)).tolist() == [4, 0]


def test_nothing_changes_when_the_pool_cannot_serve_all_rows() -> None:
    manager = manager_with_rows(4, 4, num_pages=3)
    with pytest.raises(PoolError):
        manager.grow(ints(0, 1), ints(8, 8))
    assert (manager.pool.free_count, manager.private_count) == (1, 2)
    manager.check_integrity()


def test_the_pages_of_a_closed_row_are_free_and_given_out_in_their_order() -> None:
    manager = manager_with_rows(8, 4, num_pages=3)
    manager.close_row(0)
    assert (manager.pool.free_count, manager.private_count) == (2, 1)
    manager.grow(ints(1), ints(12))
    assert manager.first_locs(1).tolist() == [8, 0, 4]


def test_a_row_is_closed_once() -> None:
    """A second close put the row on the list of unused rows twice: two requests then shared it."""
    manager = manager_with_rows(4)
    manager.close_row(0)
    with pytest.raises(PoolError, match="row 0"):
        manager.close_row(0)
    assert manager.rows.unused_count == 3


def test_the_counters_hold_the_equation() -> None:
    manager = manager_with_rows(9, 4)
    assert (manager.pool.free_count, manager.private_count) == (4, 4)
    manager.check_counters()
    manager.rows.num_pages[1] += 1
    with pytest.raises(IntegrityError, match=r"free 4 \+ private 5 != num_pages 8"):
        manager.check_counters()


class TestCheckIntegrity:
    """Each kind of damage is found and named, where the counters alone see nothing."""

    def test_it_is_content_with_rows_that_grew_and_closed(self) -> None:
        manager = manager_with_rows(9, 4, 1)
        manager.close_row(0)
        manager.grow(ints(1), ints(20))
        manager.check_integrity()

    def test_a_counter_that_drifted(self) -> None:
        manager = manager_with_rows(4)
        manager.pool._free_count -= 1
        with pytest.raises(IntegrityError, match=r"free 6 \+ private 1 != num_pages 8"):
            manager.check_integrity()

    def test_a_page_of_two_rows(self) -> None:
        manager = manager_with_rows(4, 4)
        manager._page_table[1, :4] = manager._page_table[0, :4]
        with pytest.raises(IntegrityError, match="page 0 is of rows 0 and 1"):
            manager.check_integrity()

    def test_a_page_twice_in_one_row(self) -> None:
        manager = manager_with_rows(8)
        manager._page_table[0, 4:8] = manager._page_table[0, :4]
        with pytest.raises(IntegrityError, match="page 0 is of rows 0 and 0"):
            manager.check_integrity()

    def test_a_page_of_a_row_that_is_free(self) -> None:
        manager = manager_with_rows(4)
        manager._page_table[0, :4] = [28, 29, 30, 31]
        with pytest.raises(IntegrityError, match="page 7 is free and of row 0"):
            manager.check_integrity()

    def test_locs_that_do_not_run_on_inside_a_page(self) -> None:
        manager = manager_with_rows(4)
        manager._page_table[0, 2] = 9
        with pytest.raises(IntegrityError, match=r"row 0: locs do not run on .*\[0, 1, 9, 3\]"):
            manager.check_integrity()

    def test_a_first_loc_that_is_no_multiple_of_the_page_size(self) -> None:
        manager = manager_with_rows(4)
        manager._page_table[0, :4] = [1, 2, 3, 4]
        with pytest.raises(IntegrityError, match="row 0: locs do not run on"):
            manager.check_integrity()

    def test_a_free_list_that_holds_a_page_twice(self) -> None:
        manager = manager_with_rows(4)
        manager.pool._free_pages[0] = manager.pool._free_pages[1]
        with pytest.raises(IntegrityError, match="the free list"):
            manager.check_integrity()


@settings(derandomize=True, deadline=None)
@given(
    page_size=st.sampled_from((1, 2, 4)),
    num_pages=st.integers(1, 10),
    moves=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 24)), max_size=30),
)
def test_every_page_has_one_owner_whatever_rows_do(
    page_size: int, num_pages: int, moves: list[tuple[int, int]]
) -> None:
    """Against a model that only counts: a row closes at length 0, else it grows to the length."""
    manager = CacheManager(describe(page_size=page_size, num_pages=num_pages))
    pages_of: dict[int, int] = {}
    for generation, (idx, length) in enumerate(moves):
        if length == 0:
            if pages_of.pop(idx, None) is not None:
                manager.close_row(idx)
        elif idx in pages_of:
            wanted = max(pages_of[idx], -(-length // page_size))
            growth = wanted - pages_of[idx]
            if growth > num_pages - sum(pages_of.values()):
                with pytest.raises(PoolError):
                    manager.grow(ints(idx), ints(length))
            else:
                write = manager.grow(ints(idx), ints(length))
                assert len(write.locs) == growth * page_size
                assert np.all(write.locs[::page_size] % page_size == 0)
                pages_of[idx] = wanted
        else:
            opened = manager.open_row(request(generation + 1), generation)
            pages_of[opened] = 0
        manager.check_integrity()
        assert manager.private_count == sum(pages_of.values())
        assert manager.pool.free_count == num_pages - manager.private_count
