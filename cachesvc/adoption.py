"""Taking over the pages that an earlier manager cached, by its journal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from cachesvc.journal import NO_PARENT, Entry, Filled, Kept, Removed
from cachesvc.ledger import NOBODY, ChangeReason, PageState
from cachesvc.manager import CacheManager
from cachesvc.prefix_node import ID_BYTES
from servicekit.plan import Attached, RunnerDescription


class UnusableJournalError(Exception):
    """Nothing is adopted, for the reason that it tells."""


class KnownPage(NamedTuple):
    """What a page holds, after the pages before it."""

    page_id: int
    parent: int  # serial of the page before, or NO_PARENT
    filled_by: int
    ids: bytes
    salt: str


class Sequence(NamedTuple):
    """Pages that follow each other from the first one on."""

    salt: str
    pages: list[KnownPage]


def adopt(manager: CacheManager, kept: Kept, attached: Attached) -> int:
    """Put into the empty tree of `manager` every page that a journal knows to be in the runner's
    memory. Returns how many.

    Errors: UnusableJournalError with nothing changed, when the journal is not of this memory, ends
    too early, or does not add up.
    """
    _check(kept, attached)
    pages = _pages_at(kept.entries, attached.last_executed)
    _check_pages(pages.values(), attached.description)
    tree, filled_by = manager.tree, manager.filled_by
    for salt, sequence in _sequences(pages):
        ids = b"".join(page.ids for page in sequence)
        match = tree.match(ids, salt, len(sequence))
        new = sequence[match.num_pages :]
        page_ids = np.array([page.page_id for page in new], dtype=np.int32)
        filled_by[page_ids] = [page.filled_by for page in new]
        at = match.num_pages * manager.page_size * ID_BYTES
        tail = tree.lock(match)
        inserted = tree.insert(tail, ids[at:], (page_ids * manager.page_size).tobytes())
        tree.unlock(inserted.tail)
    manager.free_the_rest()
    locs = np.frombuffer(b"".join(node.locs for node in tree.nodes()), dtype=np.int32)
    manager.ledger.plan_id = attached.last_executed
    manager.ledger.note(ChangeReason.ADOPTED, PageState.EVICTABLE, locs, NOBODY)
    return len(locs)


def _check(kept: Kept, attached: Attached) -> None:
    """Whether the journal is of this memory, and goes as far as the runner did."""
    head, runner = kept.head, attached.description
    if head is None or kept.void_because:
        raise UnusableJournalError(kept.void_because or "it is empty")
    if head.boot_id != attached.boot_id:
        raise UnusableJournalError(
            f"it is of boot_id {head.boot_id}, the runner's is {attached.boot_id}"
        )
    driven = (attached.last_manager_id, attached.last_executed)
    if attached.last_manager_id != head.manager_id and driven != (
        head.former_manager_id,
        head.former_last_executed,  # of its writer nothing was executed yet
    ):
        raise UnusableJournalError(
            f"the runner was driven last by another manager, {attached.last_manager_id or 'none'}"
        )
    for name, theirs, ours in (
        ("model_fingerprint", head.model_fingerprint, runner.model_fingerprint),
        ("page_size", head.page_size, runner.page_size),
        ("num_pages", head.num_pages, runner.num_pages),
    ):
        if theirs != ours:
            raise UnusableJournalError(f"its {name} is {theirs}, the runner's is {ours}")
    last_plan_id = kept.entries[-1].plan_id if kept.entries else 0
    if last_plan_id < attached.last_executed:
        raise UnusableJournalError(
            f"it ends at plan {last_plan_id}, the runner executed plan {attached.last_executed}"
        )


def _pages_at(entries: Iterable[Entry], last_executed: int) -> dict[int, KnownPage]:
    """By serial, what pages hold once the plans up to `last_executed` are executed and no other.
    Parents are as they were noted, or pages of the same content where those are gone.
    """
    pages: dict[int, KnownPage] = {}
    serial_of: dict[int, int] = {}  # by page_id
    same_as: dict[int, int] = {}
    for entry in entries:
        for change in entry.changes:
            if isinstance(change, Filled):
                _fill(change, last_executed, pages, serial_of)
            elif entry.plan_id <= last_executed:
                _remove(change, pages, serial_of, same_as)
    for serial, page in pages.items():
        parent = page.parent
        while parent in same_as:
            parent = same_as[parent]
        if parent != page.parent:
            pages[serial] = page._replace(parent=parent)
    return pages


def _fill(
    change: Filled,
    last_executed: int,
    pages: dict[int, KnownPage],
    serial_of: dict[int, int],
) -> None:
    salts = dict(change.salts)
    columns = (change.page_ids.tolist(), change.parents.tolist(), change.filled_by.tolist())
    for nth, (page_id, parent, filled_by) in enumerate(zip(*columns, strict=True)):
        if filled_by > last_executed:
            continue
        if page_id in serial_of:
            raise UnusableJournalError(f"page {page_id} is filled twice")
        serial = change.first_serial + nth
        salt, ids = salts.get(nth, ""), change.ids[nth].tobytes()
        pages[serial] = KnownPage(page_id, parent, filled_by, ids, salt)
        serial_of[page_id] = serial


def _remove(
    change: Removed,
    pages: dict[int, KnownPage],
    serial_of: dict[int, int],
    same_as: dict[int, int],
) -> None:
    for page_id, other in zip(change.page_ids.tolist(), change.same_as.tolist(), strict=True):
        serial = serial_of.pop(page_id, None)
        if serial is not None:  # else what filled it was never executed
            if pages.pop(serial, None) is None:
                raise UnusableJournalError(f"page {page_id} is given up twice")
            if other:
                same_as[serial] = other


def _sequences(pages: dict[int, KnownPage]) -> Iterator[Sequence]:
    """From each page that none follows, the way from the first one to it, in order of serials.
    Pages without all those before them are in none.
    """
    followed = {page.parent for page in pages.values()}
    for serial in sorted(pages.keys() - followed):
        way: list[KnownPage] = []
        at = serial
        while at != NO_PARENT and at in pages and len(way) <= len(pages):
            way.append(pages[at])
            at = pages[at].parent
        if at == NO_PARENT:
            yield Sequence(way[-1].salt, way[::-1])


def _check_pages(pages: Collection[KnownPage], runner: RunnerDescription) -> None:
    """What no checksum sees: a writer that was wrong."""
    for page in pages:
        if not 0 <= page.page_id < runner.num_pages or len(page.ids) != runner.page_size * ID_BYTES:
            raise UnusableJournalError(f"page {page.page_id} is no page of the runner")
    ids = np.frombuffer(b"".join(page.ids for page in pages), dtype=np.int32)
    if not (ids.view(np.uint32) < runner.vocab_size).all():  # a negative one is large, unsigned
        raise UnusableJournalError("it has ids outside the vocabulary")
