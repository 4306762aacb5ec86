"""Bugs to plant in the prefix tree: what matches, who holds it, what is evicted."""

from __future__ import annotations

from cachesvc.eviction_order import EvictionQueue, LeastRecentlyUsed
from cachesvc.manager import CacheManager
from cachesvc.prefix_tree import PrefixTree
from tests.cachesvc.mutants import Mutants, Patch

MUTANTS = Mutants()


# Matching and holding


@MUTANTS.plant
def a_match_leaves_no_token_to_compute(patch: Patch) -> None:
    def wrong(self, req):
        most_pages = req.known_len // self.page_size
        return self.tree.match(req.known_ids, req.submission.cache_salt, most_pages)

    patch.setattr(CacheManager, "find_prefix", wrong)


@MUTANTS.plant
def a_match_takes_no_notice_of_the_salt(patch: Patch) -> None:
    right = PrefixTree.match
    patch.setattr(
        PrefixTree, "match", lambda self, ids, salt, most_pages: right(self, ids, "", most_pages)
    )


@MUTANTS.plant
def a_failed_admission_leaves_a_lock(patch: Patch) -> None:
    right = CacheManager.lacking_pages

    def wrong(self, req, match):
        lacking = right(self, req, match)
        if lacking > 0:
            self.tree.lock(match)
        return lacking

    patch.setattr(CacheManager, "lacking_pages", wrong)


@MUTANTS.plant
def pages_of_the_own_match_count_as_available(patch: Patch) -> None:
    patch.setattr(PrefixTree, "evictable_in", lambda self, match: 0)


@MUTANTS.plant
def a_split_forgets_who_holds_the_first_part(patch: Patch) -> None:
    right = PrefixTree._split

    def wrong(self, node, pages):
        upper = right(self, node, pages)
        upper.ref_count = 0
        return upper

    patch.setattr(PrefixTree, "_split", wrong)


@MUTANTS.plant
def a_path_is_unlocked_at_its_end_only(patch: Patch) -> None:
    right = PrefixTree.unlock

    def wrong(self, tail):
        parent, tail.parent = tail.parent, None
        released = right(self, tail)
        tail.parent = parent
        return released

    patch.setattr(PrefixTree, "unlock", wrong)


@MUTANTS.plant
def a_leaf_that_two_rows_hold_grows_in_place(patch: Patch) -> None:
    right = PrefixTree._append

    def wrong(self, tail, ids, locs):
        held, tail.ref_count = tail.ref_count, 1 if tail.locs else tail.ref_count
        end = right(self, tail, ids, locs)
        tail.ref_count = held
        return end

    patch.setattr(PrefixTree, "_append", wrong)


# Evicting


@MUTANTS.plant
def the_leaf_used_last_goes_first(patch: Patch) -> None:
    patch.setattr(LeastRecentlyUsed, "key", lambda self, node: 1_000_000 - node.last_used)


@MUTANTS.plant
def what_was_used_since_keeps_its_old_place(patch: Patch) -> None:
    first_use: dict[int, int] = {}

    def wrong(self, node):
        return first_use.setdefault(id(node), node.last_used)

    patch.setattr(LeastRecentlyUsed, "key", wrong)


@MUTANTS.plant
def a_node_that_a_row_holds_is_evicted(patch: Patch) -> None:
    patch.setattr(EvictionQueue, "remove", lambda self, node: None)


@MUTANTS.plant
def a_parent_is_evicted_before_its_child(patch: Patch) -> None:
    right = EvictionQueue.add

    def wrong(self, node):
        children, node.children = node.children, None
        right(self, node)
        node.children = children

    patch.setattr(EvictionQueue, "add", wrong)


@MUTANTS.plant
def pages_go_from_the_beginning_of_a_leaf(patch: Patch) -> None:
    right = PrefixTree._trim_leaf

    def wrong(self, leaf, kept_pages):
        gone = leaf.num_pages - kept_pages
        leaf.locs = leaf.locs[4 * gone :] + leaf.locs[: 4 * gone]
        return right(self, leaf, kept_pages)

    patch.setattr(PrefixTree, "_trim_leaf", wrong)
