"""Pages that are full of known ids: what of them changed since the last plan, for the journal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cachesvc.journal import NO_PARENT, Change, Filled, Int64Array, Removed
from cachesvc.page_table import PageTable
from cachesvc.prefix_node import PrefixNode, SaltedRoot
from cachesvc.prefix_tree import PrefixTree
from cachesvc.rows import RowIndexes, RowTable
from servicekit.plan import Int32Array

UNKNOWN = 0  # the serial of a page that is not full of known ids
NOWHERE = -1  # as a parent: the page is not adopted


class KnownPages:
    """Owns the serials of pages, and the changes that no entry of the journal has yet. Every page
    of the prefix tree has a serial, and so have full pages of rows before the tree takes them.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.rewrite_due = True  # changes are not all that there is to say
        self._page_size = page_size
        self._serials: Int64Array = np.zeros(num_pages, dtype=np.int64)
        self._next_serial = 1
        self._changes: list[Change] = []
        self._offsets = np.arange(page_size)

    def has_serials(self, page_ids: Int32Array) -> bool:
        """Whether all of them are known."""
        return bool((self._serials[page_ids] != UNKNOWN).all())

    def note_rows(
        self,
        rows: RowIndexes,
        columns: RowTable,
        page_table: PageTable,
        filled_by: NDArray[np.int64],
    ) -> None:
        """Note full pages of known ids that these rows have beyond those noted. A few calls of
        numpy, however many rows.
        """
        page_size, table = self._page_size, page_table.locs
        ends = np.minimum(columns.cached_len.take(rows), columns.known_len.take(rows))
        ends //= page_size
        begins = columns.num_noted_pages.take(rows)
        new = (ends > begins).nonzero()[0]
        if not len(new):
            return
        row_of, page_indexes, ends = rows.take(new), begins.take(new), ends.take(new)
        columns.num_noted_pages[row_of] = ends
        if (ends != page_indexes + 1).any():  # some row has more than its next one
            row_of = row_of.repeat(ends - page_indexes)
            bounds = zip(page_indexes.tolist(), ends.tolist(), strict=True)
            page_indexes = np.concatenate(
                [np.arange(begin, end, dtype=np.int32) for begin, end in bounds]
            )
        count = len(row_of)
        starts = row_of * table.shape[1] + page_indexes * page_size  # in the table, made flat
        page_ids = table.take(starts) // page_size
        self._serials[page_ids] = np.arange(self._next_serial, self._next_serial + count)
        parents = self._serials.take(table.take(starts - page_size, mode="wrap") // page_size)
        parents[parents == UNKNOWN] = NOWHERE  # there is none, but for our own mistakes
        firsts = (page_indexes == 0).nonzero()[0]
        parents[firsts] = NO_PARENT
        positions = row_of * columns.ids.shape[1] + page_indexes * page_size
        ids = columns.ids.take(positions[:, None] + self._offsets)
        salts = _salts(firsts, row_of, columns) if len(firsts) else ()
        fills = filled_by.take(page_ids)
        self._changes.append(Filled(self._next_serial, page_ids, parents, fills, ids, salts))
        self._next_serial += count

    def note_removed(self, first_locs: Int32Array, same_as: Int32Array | None = None) -> None:
        """Pages are free. A row that had them may go on with `same_as` instead: first locs of as
        many pages with the same content.
        """
        page_ids = first_locs // self._page_size
        known = self._serials[page_ids] != UNKNOWN
        if not np.count_nonzero(known):
            return
        page_ids = page_ids[known]
        others = np.zeros(len(page_ids), dtype=np.int64)
        if same_as is not None:
            others = self._serials[same_as[known] // self._page_size]
        self._serials[page_ids] = UNKNOWN
        self._changes.append(Removed(page_ids, others))

    def take_changes(self) -> tuple[Change, ...]:
        """Those since the last call."""
        changes, self._changes = tuple(self._changes), []
        return changes

    def restart(
        self,
        tree: PrefixTree,
        columns: RowTable,
        filled_by: NDArray[np.int64],
    ) -> None:
        """Number the pages of the tree anew, as the only changes; rows note theirs again."""
        self._serials[:] = UNKNOWN
        self._next_serial = 1
        self._changes = []
        self.rewrite_due = False
        columns.num_noted_pages[:] = columns.num_tree_pages
        page_size = self._page_size
        runs: list[PrefixNode] = []
        parents: list[int] = []
        salts: list[tuple[int, str]] = []
        last_serial_of: dict[PrefixNode, int] = {}
        at = 1
        for node in tree.nodes():  # parents first
            if node.parent is None:
                last_serial_of[node] = NO_PARENT
                continue
            if isinstance(node.parent, SaltedRoot) and node.parent.salt:
                salts.append((at - 1, node.parent.salt))
            runs.append(node)
            parents.append(last_serial_of[node.parent])
            at += node.num_pages
            last_serial_of[node] = at - 1
        if not runs:
            return
        page_ids = np.frombuffer(b"".join(run.locs for run in runs), dtype=np.int32) // page_size
        ids = np.frombuffer(b"".join(run.ids for run in runs), dtype=np.int32)
        counts = np.array([run.num_pages for run in runs])
        serials = np.arange(1, at)
        before = serials - 1
        before[np.cumsum(counts) - counts] = parents
        self._serials[page_ids] = serials
        self._next_serial = at
        self._changes.append(
            Filled(
                1,
                page_ids,
                before,
                filled_by[page_ids],
                ids.reshape(-1, page_size),
                tuple(salts),
            )
        )


def _salts(
    firsts: RowIndexes, row_of: RowIndexes, columns: RowTable
) -> tuple[tuple[int, str], ...]:
    """Of the pages `firsts` of rows, where they have one."""
    return tuple(
        (nth, req.submission.cache_salt)
        for nth, idx in zip(firsts.tolist(), row_of[firsts].tolist(), strict=True)
        if (req := columns.req[idx]) is not None and req.submission.cache_salt
    )
