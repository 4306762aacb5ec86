"""The prefix tree by example: pages of two tokens, first locs 0, 2, 4 …"""

from __future__ import annotations

import pytest

from cachesvc.prefix_node import SaltedRoot
from cachesvc.prefix_tree import TreeError
from tests.cachesvc.tree_world import TreeWorld, packed, unpacked

ONE, TWO, THREE, FOUR = [1, 1], [2, 2], [3, 3], [4, 4]  # pages


# Matching


def test_nothing_matches_in_an_empty_tree() -> None:
    match = TreeWorld().match(ONE + TWO)
    assert (match.num_pages, match.locs.tolist(), match.last_loc) == (0, [], -1)


def test_the_longest_cached_stretch_of_whole_pages_matches() -> None:
    world = TreeWorld()
    world.cache(ONE + TWO + THREE, [0, 2, 4])
    assert world.hit(ONE + TWO + THREE + FOUR) == [0, 2, 4]
    assert world.hit([*ONE, *TWO, 3, 9]) == [0, 2]
    assert world.hit(ONE) == [0]
    assert world.match(ONE + TWO).last_loc == 2
    assert world.hit(TWO + ONE) == []


def test_no_more_pages_match_than_are_asked_for() -> None:
    world = TreeWorld()
    world.cache(ONE + TWO + THREE, [0, 2, 4])
    assert world.tree.match(packed(ONE + TWO + THREE), "", 2).locs.tolist() == [0, 2]
    assert world.tree.match(packed(ONE + TWO + THREE), "", 0).locs.tolist() == []


def test_a_key_shorter_than_a_page_is_an_empty_match() -> None:
    """sgl-project/sglang PR #10637: it was looked up, and lengths by key and by value differed."""
    world = TreeWorld(page_size=4)
    world.cache([1, 2, 3, 4], [0])
    for ids in ([], [1], [1, 2, 3]):
        match = world.match(ids)
        assert (match.num_pages, match.locs.tolist()) == (0, [])
    tail = world.tree.lock(world.match([1, 2, 3]))
    assert world.counts == (1, 0)
    world.tree.unlock(tail)


def test_case_2_4_pages_are_told_apart_by_their_ids_and_not_by_a_hash() -> None:
    """vllm-project/vllm PR #12621: keys were a predictable hash, so two pages could be taken as
    equal. In Python hash(-1) == hash(-2); here a lookup ends in a comparison of the ids.
    """
    world = TreeWorld(page_size=4)
    world.cache([1, 2, 3, 4], [0])
    assert world.hit([5, 6, 7, 8]) == []
    assert hash(-1) == hash(-2)
    world.cache([-1, -1, -1, -1], [4])
    assert world.hit([-2, -2, -2, -2]) == []


@pytest.mark.parametrize("parts", [([1, 2], [3, 4]), ([1, 2, 3], [4])])
def test_case_2_4_a_prefix_matches_however_it_was_put_together(
    parts: tuple[list[int], list[int]],
) -> None:
    """Prefix [1, 2] + [3, 4] against [1, 2, 3] + [4]: the same tokens, so a full match."""
    world = TreeWorld(page_size=1)
    first, second = parts
    tail = world.insert(world.lock(), first, range(len(first))).tail
    world.insert(tail, second, range(len(first), 4))
    assert world.hit([1, 2, 3, 4]) == [0, 1, 2, 3]
    assert world.hit([1, 2, 4, 3]) == [0, 1]


def test_a_match_changes_nothing() -> None:
    world = TreeWorld()
    world.cache(ONE + TWO, [0, 2])
    world.cache(THREE, [4])
    for _ in range(3):
        world.match(ONE)
    assert world.nodes == [([4], 0), ([0, 2], 0)]
    assert world.evict(1) == [2], "looking is not using"


# Locking


def test_a_lock_splits_where_the_match_ends_and_holds_the_part_that_matches() -> None:
    world = TreeWorld()
    world.cache(ONE + TWO + THREE, [0, 2, 4])
    assert world.counts == (3, 0)
    tail = world.lock(ONE)
    assert world.nodes == [([0], 1), ([2, 4], 0)]
    assert world.counts == (2, 1)
    assert unpacked(world.tree.unlock(tail)) == [0]
    assert world.counts == (3, 0)


def test_a_split_keeps_the_ref_count_of_both_parts() -> None:
    world = TreeWorld()
    tail = world.insert(world.lock(), ONE + TWO, [0, 2]).tail
    other = world.lock(ONE)
    assert world.nodes == [([0], 2), ([2], 1)]
    world.tree.unlock(tail)
    assert world.nodes == [([0], 1), ([2], 0)]
    world.tree.unlock(other)
    assert world.counts == (2, 0)


def test_evictable_pages_never_fall_below_zero_after_a_split() -> None:
    """UbiquitousLearning/mllm PR #656: the evictable size went negative after a split."""
    world = TreeWorld()
    world.cache(ONE + TWO + THREE + FOUR, [0, 2, 4, 6])
    tails = [world.lock(ids) for ids in (ONE, ONE + TWO, ONE + TWO + THREE, ONE + TWO)]
    assert world.counts == (1, 3)
    for tail in tails:
        world.tree.unlock(tail)
    assert world.counts == (4, 0)


def test_the_parts_of_a_split_node_share_no_memory_with_it() -> None:
    """sgl-project/sglang PR #17191: parts were views of the parent's tensor, which never went."""
    world = TreeWorld()
    world.cache(ONE * 16, range(0, 32, 2))
    world.lock(ONE)
    for node in world.tree.nodes():
        for part in (node.ids, node.locs):
            assert type(part) is bytes, "the bytes themselves, which refer to nothing"


def test_a_path_that_nobody_holds_cannot_be_unlocked() -> None:
    world = TreeWorld()
    tail = world.insert(world.lock(), ONE + TWO, [0, 2]).tail
    world.tree.unlock(tail)
    with pytest.raises(TreeError, match="path to first loc 2 is unlocked and not locked"):
        world.tree.unlock(tail)
    assert world.counts == (2, 0)


def test_unlock_tells_which_pages_became_evictable() -> None:
    world = TreeWorld()
    one = world.insert(world.lock(), ONE + TWO, [0, 2]).tail
    two = world.insert(world.lock(ONE), THREE, [4]).tail
    assert unpacked(world.tree.unlock(one)) == [2]
    assert unpacked(world.tree.unlock(two)) == [0, 4]


# Inserting


def test_duplicates_in_the_middle_are_told_with_the_pages_of_the_tree() -> None:
    """The row's pages 2 and 4 are there as 10 and 12, and 6 is new behind them."""
    world = TreeWorld()
    world.cache(ONE + TWO + THREE + ONE, [8, 10, 12, 14])
    tail = world.lock(ONE)
    inserted = world.insert(tail, TWO + THREE + FOUR, [2, 4, 6])
    told = [(nth, unpacked(locs)) for nth, locs in inserted.duplicates]
    assert told == [(0, [10, 12])]
    assert unpacked(inserted.shared) == [6]
    assert world.hit(ONE + TWO + THREE + FOUR) == [8, 10, 12, 6]
    assert world.hit(ONE + TWO + THREE + ONE) == [8, 10, 12, 14]
    assert world.counts == (1, 4)
    assert unpacked(world.tree.unlock(inserted.tail)) == [8, 10, 12, 6]


def test_duplicates_over_several_nodes_are_told_node_by_node() -> None:
    world = TreeWorld()
    world.cache(ONE + TWO + THREE, [8, 10, 12])
    world.tree.unlock(world.lock(ONE))  # splits behind the first page
    inserted = world.insert(world.lock(), ONE + TWO + THREE, [0, 2, 4])
    assert [(nth, unpacked(locs)) for nth, locs in inserted.duplicates] == [(0, [8]), (1, [10, 12])]
    assert inserted.shared == b""


def test_a_leaf_that_only_its_row_holds_grows_in_place() -> None:
    world = TreeWorld()
    tail = world.insert(world.lock(), ONE, [0]).tail
    assert world.insert(tail, TWO, [2]).tail is tail
    assert world.nodes == [([0, 2], 1)]


def test_a_leaf_that_another_row_holds_too_gets_a_child() -> None:
    """Grown in place, the other row would hold a page that it does not have."""
    world = TreeWorld()
    tail = world.insert(world.lock(), ONE, [0]).tail
    world.lock(ONE)
    assert world.insert(tail, TWO, [2]).tail is not tail
    assert world.nodes == [([0], 2), ([2], 1)]


def test_a_node_with_children_gets_another_child() -> None:
    world = TreeWorld()
    world.cache(ONE + TWO, [0, 2])
    tail = world.lock(ONE)
    world.insert(tail, THREE, [4])
    assert sorted(world.nodes) == [([0], 1), ([2], 0), ([4], 1)]


def test_nodes_are_cut_at_their_greatest_length() -> None:
    world = TreeWorld(max_node_tokens=4)
    tail = world.insert(world.lock(), ONE + TWO + THREE + FOUR + ONE, [0, 2, 4, 6, 8]).tail
    assert world.nodes == [([0, 2], 1), ([4, 6], 1), ([8], 1)]
    tail = world.insert(tail, TWO + THREE, [10, 12]).tail
    assert world.nodes == [([0, 2], 1), ([4, 6], 1), ([8, 10], 1), ([12], 1)]
    assert world.hit(ONE + TWO + THREE + FOUR + ONE + TWO + THREE) == [0, 2, 4, 6, 8, 10, 12]
    world.tree.unlock(tail)
    assert world.evict(7) == [12, 10, 8, 6, 4, 2, 0]


def test_prompts_with_different_salts_share_nothing() -> None:
    world = TreeWorld()
    world.cache(ONE, [0], salt="a")
    world.cache(ONE, [2], salt="b")
    assert (world.hit(ONE, "a"), world.hit(ONE, "b"), world.hit(ONE)) == ([0], [2], [])


def test_a_root_without_pages_and_rows_goes() -> None:
    world = TreeWorld()
    tail = world.lock((), "a")
    assert [node.salt for node in world.tree.nodes() if isinstance(node, SaltedRoot)] == ["a"]
    world.tree.unlock(tail)
    assert list(world.tree.nodes()) == []
    world.cache(ONE, [0], salt="b")
    world.evict(1)
    assert list(world.tree.nodes()) == []
