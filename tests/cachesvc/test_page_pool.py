"""Free pages: which are given out, and what cannot be taken back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachesvc.page_pool import PagePool, PoolError
from tests.cachesvc.builders import ints


def test_a_new_pool_gives_out_its_pages_from_the_first() -> None:
    pool = PagePool(num_pages=4, page_size=16)
    assert pool.allocate(3).tolist() == [0, 16, 32]
    assert pool.free_count == 1


def test_pages_freed_last_are_given_out_first_and_in_the_same_order() -> None:
    pool = PagePool(num_pages=4, page_size=16)
    pool.allocate(4)
    pool.free(ints(48))
    pool.free(ints(32, 0))
    assert pool.allocate(2).tolist() == [32, 0]
    assert pool.allocate(1).tolist() == [48]


def test_no_pages_are_taken_when_fewer_are_free_than_asked_for() -> None:
    pool = PagePool(num_pages=4, page_size=16)
    pool.allocate(2)
    with pytest.raises(PoolError, match="3 pages asked for, 2 of 4 free"):
        pool.allocate(3)
    assert pool.allocate(2).tolist() == [32, 48]


def test_nothing_is_allocated_when_nothing_is_asked_for() -> None:
    assert PagePool(num_pages=1, page_size=4).allocate(0).tolist() == []


@pytest.mark.parametrize("first_locs", [(16,), (0, 16), (0, 0)])
def test_a_page_cannot_be_freed_twice(first_locs: tuple[int, ...]) -> None:
    pool = PagePool(num_pages=2, page_size=16)
    pool.allocate(1)
    with pytest.raises(PoolError, match="freed twice"):
        pool.free(ints(*first_locs))
    assert pool.free_count == 1
    pool.check_integrity()


@pytest.mark.parametrize("first_loc", [-16, 3, 32])
def test_a_loc_that_begins_no_page_cannot_be_freed(first_loc: int) -> None:
    pool = PagePool(num_pages=2, page_size=16)
    pool.allocate(2)
    with pytest.raises(PoolError, match="not first locs of pages"):
        pool.free(ints(first_loc))
    assert pool.free_count == 0


def test_is_free_tells_each_page_apart() -> None:
    pool = PagePool(num_pages=3, page_size=2)
    pool.allocate(2)
    assert pool.is_free.tolist() == [False, False, True]


def test_check_integrity_names_a_loc_on_the_free_list_that_begins_no_page() -> None:
    pool = PagePool(num_pages=2, page_size=4)
    pool._free_pages[0] = 5
    with pytest.raises(PoolError, match=r"begin no page: \[5, 0\]"):
        pool.check_integrity()


def test_check_integrity_names_a_page_that_is_twice_on_the_free_list() -> None:
    pool = PagePool(num_pages=2, page_size=4)
    pool._free_pages[0] = 0
    with pytest.raises(PoolError, match=r"the free list \[0, 0\] differs from the free pages"):
        pool.check_integrity()


def test_check_integrity_sees_a_free_page_that_left_the_free_list() -> None:
    pool = PagePool(num_pages=2, page_size=4)
    pool._free_count -= 1
    with pytest.raises(PoolError, match=r"differs from the free pages \[0, 4\]"):
        pool.check_integrity()


@settings(derandomize=True, deadline=None)
@given(
    page_size=st.sampled_from((1, 2, 16)),
    num_pages=st.integers(1, 9),
    moves=st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=40),
)
def test_a_pool_agrees_with_a_stack_of_pages(
    page_size: int, num_pages: int, moves: list[tuple[bool, int]]
) -> None:
    pool = PagePool(num_pages, page_size)
    stack = [page_id * page_size for page_id in reversed(range(num_pages))]
    taken: list[int] = []
    for takes, count in moves:
        if takes and count <= len(stack):
            expected = [stack.pop() for _ in range(count)]
            assert pool.allocate(count).tolist() == expected
            taken += expected
        elif takes:
            with pytest.raises(PoolError):
                pool.allocate(count)
        else:
            given_back, taken = taken[:count], taken[count:]
            pool.free(ints(*given_back))
            stack += reversed(given_back)
        assert pool.free_count == len(stack)
        pool.check_integrity()
