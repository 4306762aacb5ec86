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

BOOKS_FAULTS = (IntegrityError, PoolError, TreeError, IndexError)  # the last: a loc of no page
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
    """Walk over every page, node and row. Nothing changes. O(pages + nodes)."""
    violations, broken_rows = _broken_rows(manager)
    claims, outside = _claims(manager)
    violations += [Violation(None, f"{owner} has first loc {loc}") for owner, loc in outside]
    total = np.bincount(
        np.concatenate([pages for _, pages in claims]), minlength=manager.pool.num_pages
    )
    for page_id in np.flatnonzero(total != 1).tolist():
        owners = [owner for owner, pages in claims for _ in range((pages == page_id).sum())]
        rule = f"claimed by {' and '.join(owners)}" if owners else "of nobody"
        violations.append(Violation(page_id, rule))
    for check in (
        manager.pool.check_integrity,
        manager.tree.check_integrity,
        manager.check_counters,
    ):
        try:
            check()
        except BOOKS_FAULTS as error:
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
    manager.tree.cut_where(
        lambda locs: np.isin(locs // page_size, found.claimed_twice) | ~is_of_pool(manager, locs),
        tails,
    )
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


def _claims(
    manager: CacheManager,
) -> tuple[list[tuple[str, Int32Array]], list[tuple[str, int]]]:
    """Who claims which pages of the pool, and who has a first loc that is of none."""
    in_tree = b"".join(node.locs for node in manager.tree.nodes())
    quarantined = np.array(sorted(manager.quarantined), dtype=np.int32) * manager.page_size
    first_locs = {
        "the free list": manager.pool.free_pages,
        "the prefix tree": np.frombuffer(in_tree, dtype=np.int32),
        "quarantine": quarantined,
        **{_row(manager, idx): manager.private_locs(idx) for idx in manager.rows.open_rows},
    }
    claims, outside = [], []
    for owner, locs in first_locs.items():
        of_pool = is_of_pool(manager, locs)
        claims.append((owner, locs[of_pool] // manager.page_size))
        outside += [(owner, loc) for loc in locs[~of_pool].tolist()]
    return claims, outside


def is_of_pool(manager: CacheManager, first_locs: Int32Array) -> NDArray[np.bool_]:
    """For each whether a page begins there, bool[n]."""
    of_pool: NDArray[np.bool_] = first_locs % manager.page_size == 0
    of_pool &= first_locs.view(np.uint32) < manager.runner.pool_tokens  # negative: large, unsigned
    return of_pool


def _row(manager: CacheManager, idx: int) -> str:
    req = manager.rows.req[idx]
    return f"row {idx}" if req is None else f"row {idx} of {req.submission.request_id!r}"


def _broken_rows(manager: CacheManager) -> tuple[list[Violation], list[int]]:
    """Rows that are not what their paths say, and nodes held by others than they say."""
    violations: list[Violation] = []
    broken: list[int] = []
    holders: dict[PrefixNode, list[int]] = {}
    for idx in manager.rows.open_rows:
        for node in path_of(manager.rows.tail[idx]):
            holders.setdefault(node, []).append(idx)
        rule = _fault_of_row(manager, idx)
        if rule is not None:
            violations.append(Violation(None, f"{_row(manager, idx)} {rule}"))
            broken.append(idx)
    for node in manager.tree.nodes():
        held_by = holders.pop(node, [])
        if node.ref_count != len(held_by):
            rule = f"ref_count {node.ref_count} of a node that {len(held_by)} rows hold"
            first_page = node.first_loc // manager.page_size if node.locs else None
            violations.append(Violation(first_page, rule))
    for node, held_by in holders.items():
        if node.locs:
            rule = "held by a row and not in the tree"
            violations.append(Violation(node.first_loc // manager.page_size, rule))
            broken += held_by
    return violations, broken


def _fault_of_row(manager: CacheManager, idx: int) -> str | None:
    """What is wrong with the pages of a row: not those of its path, or with other ids in them, locs
    that do not run on inside a page, or are of no page.
    """
    path, end = path_of(manager.rows.tail[idx]), int(manager.rows.num_tree_pages[idx])
    mapped, first_locs = manager.page_table.first_locs(idx, 0, end), manager.first_locs(idx)
    ids = manager.rows.ids[idx, : end * manager.page_size]
    if mapped.tobytes() != b"".join(node.locs for node in path):
        return f"is mapped to first locs {mapped.tolist()}, its path to others"
    if ids.tobytes() != b"".join(node.ids for node in path):
        return f"has other ids than its path in pages at first locs {mapped.tolist()}"
    if not manager.page_table.runs_on(idx, len(first_locs)):
        return f"locs do not run on inside a page: {first_locs.tolist()}"
    if not is_of_pool(manager, first_locs).all():
        return f"is mapped outside the pool: {first_locs.tolist()}"
    return None


def path_of(tail: PrefixNode | None) -> list[PrefixNode]:
    """Nodes from the root to `tail`."""
    path: list[PrefixNode] = []
    while tail is not None:
        path.append(tail)
        tail = tail.parent
    return path[::-1]
