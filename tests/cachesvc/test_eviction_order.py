"""What goes first from the prefix tree, by example: pages of two tokens, first locs 0, 2, 4 …"""

from __future__ import annotations

import pytest

from cachesvc.eviction_order import LeastRecentlyUsed
from cachesvc.prefix_tree import TreeError
from tests.cachesvc.tree_world import LowestPageFirst, TreeWorld, unpacked

ONE, TWO, THREE, FOUR = [1, 1], [2, 2], [3, 3], [4, 4]  # pages


def test_the_leaf_used_longest_ago_goes_first_and_from_its_end() -> None:
    world = TreeWorld()
    world.cache(ONE + TWO, [0, 2])
    world.cache(THREE + FOUR, [4, 6])
    world.tree.unlock(world.lock(ONE + TWO))
    assert world.evict(1) == [6]
    assert world.hit(THREE + FOUR) == [4]
    assert world.evict(3) == [4, 2, 0]
    assert world.counts == (0, 0)


def test_a_page_never_goes_before_what_stands_on_it() -> None:
    """NVIDIA/Megatron-LM PR #5822: a parent was used longest ago and went before its children."""
    world = TreeWorld()
    world.cache(ONE + TWO, [0, 2])
    tail = world.lock(ONE)  # splits: [0] and [2]
    world.tree.unlock(world.insert(tail, THREE, [4]).tail)
    world.cache(FOUR, [6])
    world.tree.unlock(world.lock(ONE + TWO))
    assert world.evict(2) == [4, 6]
    assert world.evict(2) == [2, 0]


def test_what_a_row_holds_is_not_evicted() -> None:
    world = TreeWorld()
    world.cache(ONE + TWO, [0, 2])
    world.lock(ONE)
    assert world.evict(1) == [2]
    with pytest.raises(TreeError, match="1 pages to evict, 0 are evictable"):
        world.evict(1)
    assert world.hit(ONE) == [0]


def test_nothing_goes_when_fewer_pages_are_evictable_than_are_to_go() -> None:
    world = TreeWorld()
    world.cache(ONE + TWO, [0, 2])
    with pytest.raises(TreeError, match="3 pages to evict, 2 are evictable"):
        world.evict(3)
    assert world.counts == (2, 0)
    assert world.hit(ONE + TWO) == [0, 2]


def test_an_eviction_tells_what_it_cut_and_where() -> None:
    world = TreeWorld()
    world.cache(ONE + TWO + THREE, [0, 2, 4], salt="a")
    (eviction,) = world.tree.evict(2)
    assert (unpacked(eviction.locs), eviction.after_loc, eviction.salt) == ([2, 4], 0, "")
    assert unpacked(eviction.first_page_ids) == TWO
    (eviction,) = world.tree.evict(1)
    assert (eviction.after_loc, eviction.salt) == (-1, "a")


def test_the_order_can_be_swapped_while_serving() -> None:
    world = TreeWorld()
    world.cache(ONE, [4])
    world.cache(TWO, [2])
    world.cache(THREE, [0])
    world.cache(FOUR, [6])
    world.tree.set_order(LowestPageFirst())
    assert world.evict(2) == [0, 2]
    world.tree.set_order(LeastRecentlyUsed())
    assert world.evict(2) == [4, 6]
    assert world.counts == (0, 0)


def test_leaves_with_one_key_go_by_their_first_loc() -> None:
    world = TreeWorld(order=LowestPageFirst())
    world.cache(ONE + TWO, [6, 0])
    world.cache(THREE, [4])
    assert world.evict(3) == [4, 0, 6]


# Cutting


def test_bad_pages_go_with_all_that_stands_on_them() -> None:
    world = TreeWorld()
    world.cache(ONE + TWO + THREE, [0, 2, 4])
    world.tree.unlock(world.insert(world.lock(ONE + TWO), FOUR, [6]).tail)
    world.cache(FOUR, [8])
    gone = world.tree.cut_where(lambda locs: locs == 2, tails=())
    assert sorted(unpacked(gone)) == [2, 4, 6]
    assert world.hit(ONE + TWO) == [0]
    assert world.counts == (2, 0)
    assert world.evict(2) == [0, 8]


def test_locks_are_counted_anew_after_a_cut() -> None:
    """Two rows held [0]; one of them, which held [2] as well, is gone."""
    world = TreeWorld()
    world.insert(world.lock(), ONE + TWO, [0, 2])
    stays = world.lock(ONE)
    empty = world.lock((), "a")
    world.tree.cut_where(lambda locs: locs == 2, tails=[stays, empty])
    assert world.nodes == [([0], 1)]
    assert world.counts == (0, 1)
    world.insert(empty, THREE, [4])
    assert world.hit(THREE, "a") == [4], "an empty root that a row holds stays"
    assert unpacked(world.tree.unlock(stays)) == [0]
