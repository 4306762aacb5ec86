"""The full recount of pages, and what is done when it does not add up."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cachesvc.ledger import NOBODY, ChangeReason, PageState
from cachesvc.manager import CacheManager, IntegrityError
from cachesvc.page_pool import PoolError
from cachesvc.prefix_node import PrefixNode, SaltedRoot
from cachesvc.prefix_tree import TreeError
from servicekit.plan import Int32Array

TOLD_CHANGES = 3  # of a page's history, in a violation


class Violation(NamedTuple):
    """A rule that does not hold, of one page or of none in particular."""

    page_id: int | None
    rule: str

    def told(self, manager: CacheManager) -> str:
        """Page, owners, rule, the plan that is being made, the page's last ledger entries."""
        plan_id = manager.ledger.plan_id
        if self.page_id is None:
            return f"plan {plan_id}: {self.rule}"
        history = manager.ledger.history(self.page_id)[-TOLD_CHANGES:]
        last = "; ".join(
            f"plan {change.plan_id} {change.reason.name} for request {change.arrival}"
            for change in history
        )
        return f"plan {plan_id}: page {self.page_id}: {self.rule} ({last or 'no ledger entry'})"


class Recount(NamedTuple):
    """What every page is claimed by, and what is wrong."""

    violations: list[Violation]
    claimed_twice: NDArray[np.intp]  # page ids
    broken_rows: list[int]  # whose pages are not those of their path


def recount(manager: CacheManager) -> Recount:
    """Walk over every page, node and row. Nothing changes."""
    violations, broken_rows = _broken_rows(manager)
    claims = _claims(manager)
    total = sum(claims.values())
    for page_id in np.flatnonzero(total != 1).tolist():
        owners = [name for name, counts in claims.items() for _ in range(counts[page_id])]
        rule = f"claimed by {' and '.join(owners)}" if owners else "of nobody"
        violations.append(Violation(page_id, rule))
    for check in (manager.pool.check_integrity, manager.tree.check_integrity):
        try:
            check()
        except (PoolError, TreeError) as error:
            violations.append(Violation(None, str(error)))
    try:
        manager.check_counters()
    except IntegrityError as error:
        violations.append(Violation(None, str(error)))
    return Recount(violations, np.flatnonzero(total > 1), broken_rows)


def check_integrity(manager: CacheManager) -> None:
    """Errors: IntegrityError with every violation."""
    violations = recount(manager).violations
    if violations:
        raise IntegrityError(". ".join(violation.told(manager) for violation in violations))


def heal(manager: CacheManager, found: Recount) -> list[int]:
    """Make the books add up. Pages claimed twice are quarantined, with what stands on them in the
    tree; counters and locks are counted anew; what nobody claims is free with the next plan.

    Returns the rows that touched a page claimed twice: they own nothing any more, and their
    requests are to fail.
    """
    page_size = manager.page_size
    twice = set(found.claimed_twice.tolist())
    victims = [
        idx
        for idx in manager.rows.open_rows
        if idx in found.broken_rows
        or not twice.isdisjoint((manager.first_locs(idx) // page_size).tolist())
    ]
    for idx in victims:
        manager.rows.disown(idx, _held_root())
    manager.quarantined |= twice
    tails = [tail for tail in manager.rows.tail if tail is not None]
    manager.tree.cut_where(lambda locs: np.isin(locs // page_size, found.claimed_twice), tails)
    manager.free_the_rest()
    note_states(manager, ChangeReason.HEALED)
    return victims


def note_states(manager: CacheManager, reason: ChangeReason) -> None:
    """Tell the ledger of pages that are in another state than it heard last."""
    states = np.full(manager.pool.num_pages, PageState.PRIVATE, dtype=np.int8)
    states[manager.pool.is_free] = PageState.FREE
    states[list(manager.quarantined)] = PageState.QUARANTINED
    for node in manager.tree.nodes():
        page_ids = np.frombuffer(node.locs, dtype=np.int32) // manager.page_size
        states[page_ids] = PageState.LOCKED if node.ref_count else PageState.EVICTABLE
    differs = states != manager.ledger.states
    for state in PageState:
        page_ids = np.flatnonzero(differs & (states == state)).astype(np.int32)
        manager.ledger.note(reason, state, page_ids * manager.page_size, NOBODY)


def _held_root() -> PrefixNode:
    """A path of no pages for a row that owns none, outside the tree."""
    root = SaltedRoot("")
    root.ref_count = 1
    return root


def _claims(manager: CacheManager) -> dict[str, NDArray[np.intp]]:
    """How often each page is claimed, by owner; intp[num_pages] each."""
    page_size, num_pages = manager.page_size, manager.pool.num_pages

    def count(first_locs: Int32Array) -> NDArray[np.intp]:
        return np.bincount(first_locs // page_size, minlength=num_pages)

    in_tree = b"".join(node.locs for node in manager.tree.nodes())
    quarantined = np.array(sorted(manager.quarantined), dtype=np.int32) * page_size
    claims = {
        "the free list": count(manager.pool.free_pages),
        "the prefix tree": count(np.frombuffer(in_tree, dtype=np.int32)),
        "quarantine": count(quarantined),
    }
    for idx in manager.rows.open_rows:
        claims[f"row {idx}"] = count(manager.private_locs(idx))
    return claims


def _broken_rows(manager: CacheManager) -> tuple[list[Violation], list[int]]:
    """Rows whose shared pages, or the ids in them, are not those of their path; locs that do not
    run on inside a page; nodes held by more or fewer rows than they say.
    """
    rows, page_size = manager.rows, manager.page_size
    violations: list[Violation] = []
    broken: list[int] = []
    holders: dict[PrefixNode, list[int]] = {}
    for idx in rows.open_rows:
        path = path_of(rows.tail[idx])
        for node in path:
            holders.setdefault(node, []).append(idx)
        end = int(rows.num_tree_pages[idx])
        locs = b"".join(node.locs for node in path)
        ids = b"".join(node.ids for node in path)
        if manager.page_table.first_locs(idx, 0, end).tobytes() != locs:
            violations.append(Violation(None, f"row {idx} is not mapped to the pages of its path"))
            broken.append(idx)
        elif rows.ids[idx, : end * page_size].tobytes() != ids:
            violations.append(Violation(None, f"row {idx} has other ids than its path"))
            broken.append(idx)
        elif not manager.page_table.runs_on(idx, int(rows.num_pages[idx])):
            violations.append(Violation(None, f"row {idx}: locs do not run on inside a page"))
            broken.append(idx)
    for node in manager.tree.nodes():
        held_by = holders.pop(node, [])
        if node.ref_count != len(held_by):
            rule = f"ref_count {node.ref_count} of a node that {len(held_by)} rows hold"
            first_page = node.first_loc // page_size if node.locs else None
            violations.append(Violation(first_page, rule))
    for node, held_by in holders.items():
        if node.locs:
            rule = "held by a row and not in the tree"
            violations.append(Violation(node.first_loc // page_size, rule))
            broken += held_by
    return violations, broken


def path_of(tail: PrefixNode | None) -> list[PrefixNode]:
    """Nodes from the root to `tail`."""
    path: list[PrefixNode] = []
    while tail is not None:
        path.append(tail)
        tail = tail.parent
    return path[::-1]
