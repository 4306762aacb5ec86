"""Ways in which a manager's books may come not to add up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cachesvc.integrity import recount
from cachesvc.manager import CacheManager
from cachesvc.prefix_node import PrefixNode
from cachesvc.request import Req
from tests.cachesvc.builders import ints

Damage = Callable[[CacheManager], bool]
DAMAGES: list[Damage] = []


def damage(kind: Damage) -> Damage:
    """A way to damage the books, which returns whether they had a place for it."""
    DAMAGES.append(kind)
    return kind


def nodes_with_pages(manager: CacheManager) -> list[PrefixNode]:
    return [node for node in manager.tree.nodes() if node.locs]


def requests_that_touch_the_fault(manager: CacheManager) -> list[Req]:
    """Those whose rows have a page that is claimed twice, or other pages than their paths."""
    found = recount(manager)
    twice = set(found.claimed_twice.tolist())
    return [
        req
        for idx, req in enumerate(manager.rows.req)
        if req is not None
        and (
            idx in found.broken_rows
            or twice & {*(manager.first_locs(idx) // manager.page_size).tolist()}
        )
    ]


@damage
def a_page_is_in_two_nodes(manager: CacheManager) -> bool:
    nodes = nodes_with_pages(manager)
    if len(nodes) < 2:
        return False
    nodes[-1].locs = nodes[0].locs[-4:] + nodes[-1].locs[4:]
    return True


@damage
def a_page_of_the_tree_is_free_too(manager: CacheManager) -> bool:
    nodes = nodes_with_pages(manager)
    if nodes:
        manager.pool._is_free[nodes[-1].last_loc // manager.page_size] = True
        manager.pool.reset(np.flatnonzero(manager.pool.is_free))
    return bool(nodes)


@damage
def the_evictable_counter_is_one_too_high(manager: CacheManager) -> bool:
    manager.tree.evictable_count += 1
    return True


@damage
def a_node_that_nobody_holds_counts_as_locked(manager: CacheManager) -> bool:
    unheld = [node for node in nodes_with_pages(manager) if node.ref_count == 0]
    if unheld:
        manager.tree._move_to_locked(unheld[0].num_pages)
    return bool(unheld)


@damage
def a_page_leaks(manager: CacheManager) -> bool:
    if manager.pool.free_count:
        manager.pool.allocate(1)
        return True
    return False


@damage
def a_page_of_a_row_belongs_to_another_too(manager: CacheManager) -> bool:
    private = [idx for idx in manager.rows.open_rows if len(manager.private_locs(idx))]
    if len(private) < 2:
        return False
    one, other = private[:2]
    last = int(manager.rows.num_pages[other]) - 1
    manager.page_table.write_run(other, last, manager.private_locs(one)[-1:])
    return True


@damage
def a_page_of_a_row_is_free_too(manager: CacheManager) -> bool:
    private = [idx for idx in manager.rows.open_rows if len(manager.private_locs(idx))]
    if private:
        manager.pool.free(manager.private_locs(private[0])[:1])
    return bool(private)


@damage
def a_lock_leaks(manager: CacheManager) -> bool:
    nodes = nodes_with_pages(manager)
    if nodes:
        on_path: PrefixNode | None = nodes[-1]
        while on_path is not None:
            if on_path.ref_count == 0:
                manager.tree._move_to_locked(on_path.num_pages)
            on_path.ref_count += 1
            on_path = on_path.parent
    return bool(nodes)


@damage
def a_node_that_a_row_holds_leaves_the_tree(manager: CacheManager) -> bool:
    leaves = [node for node in nodes_with_pages(manager) if node.ref_count and not node.children]
    if not leaves:
        return False
    parent = leaves[0].parent
    assert parent is not None
    parent.remove_child(leaves[0].ids[: 4 * manager.page_size])
    return True


@damage
def a_row_points_at_another_page_than_its_path(manager: CacheManager) -> bool:
    sharing = np.flatnonzero(manager.rows.num_tree_pages)
    if not len(sharing):
        return False
    idx = int(sharing[0])
    first_loc = int(manager.page_table.first_locs(idx, 0, 1)[0])
    another = (first_loc + manager.page_size) % manager.runner.pool_tokens
    manager.page_table.write_run(idx, 0, ints(another))
    return another != first_loc


@damage
def a_row_is_mapped_outside_the_pool(manager: CacheManager) -> bool:
    private = [idx for idx in manager.rows.open_rows if len(manager.private_locs(idx))]
    if private:
        last = int(manager.rows.num_pages[private[0]]) - 1
        manager.page_table.write_run(private[0], last, ints(manager.runner.pool_tokens))
    return bool(private)


@damage
def a_node_has_a_page_outside_the_pool(manager: CacheManager) -> bool:
    nodes = nodes_with_pages(manager)
    if nodes:
        nodes[-1].locs = nodes[-1].locs[:-4] + ints(manager.runner.pool_tokens).tobytes()
    return bool(nodes)
