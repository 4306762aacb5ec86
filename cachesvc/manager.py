"""Pages of rows and of the prefix tree: who owns which, and the table writes that say so."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cachesvc.eviction_log import EvictionLog
from cachesvc.eviction_order import LeastRecentlyUsed
from cachesvc.known_pages import KnownPages
from cachesvc.ledger import NOBODY, ChangeReason, Ledger, PageState
from cachesvc.limits import Limits
from cachesvc.miss import miss_of
from cachesvc.page_pool import PagePool, PoolError
from cachesvc.page_table import NO_WRITE, PageTable, TableWrite, joined
from cachesvc.prefix_node import LOC_BYTES, Inserted, Match
from cachesvc.prefix_tree import PrefixTree
from cachesvc.request import Req
from cachesvc.rows import RowIndexes, RowSteps, RowTable
from cachesvc.story import Miss
from servicekit.arith import ceil_div
from servicekit.plan import Int32Array, RunnerDescription
from servicekit.table_digest import table_digest

SHARE_ROWS = 32  # rows that share pages in one step, at most


class IntegrityError(Exception):
    """The books do not add up: a page without owner, or with two. Names page, owner and rule."""


class CacheManager:
    """Owns the page pool, the prefix tree, the rows, the ledger and the host mirror of the page
    table for one life of a runner.

    Every page is in one of four sets: free, evictable or locked (in the tree, held by no row or by
    some), private to one row; `check_counters` holds them to num_pages. A page that was claimed
    twice is quarantined, in a fifth one that is empty when all is well.
    """

    def __init__(
        self,
        runner: RunnerDescription,
        ledger: Ledger,
        limits: Limits,
    ) -> None:
        self.runner = runner
        self.page_size = runner.page_size
        self.step_budget_tokens = min(  # the operator's, or what the runner has memory for
            limits.step_budget_tokens, runner.max_step_tokens or limits.step_budget_tokens
        )
        self.pool = PagePool(runner.num_pages, runner.page_size)
        self.tree = PrefixTree(runner.num_pages, runner.page_size, LeastRecentlyUsed())
        self.rows = RowTable(runner)
        self.ledger = ledger
        self.filled_by = np.zeros(runner.num_pages, dtype=np.int64)  # the plan that filled a page
        self.quarantined: set[int] = set()  # page ids
        self.known = KnownPages(runner.num_pages, runner.page_size)
        self.evicted_total = 0
        self.page_table = PageTable(runner)
        self._evictions = EvictionLog(self.filled_by, runner.page_size)
        self._share_stride_pages = ceil_div(limits.share_stride_tokens, runner.page_size)
        self._share_rows = max(SHARE_ROWS, runner.num_rows // 8)

    # Counting

    @property
    def private_count(self) -> int:
        """Pages of one row each."""
        return int(np.add.reduce(self.rows.num_pages) - np.add.reduce(self.rows.num_tree_pages))

    @property
    def used_count(self) -> int:
        """Pages that running requests hold, private and locked, by the equation."""
        return self.usable_count - self.available_count

    @property
    def available_count(self) -> int:
        """Pages that can be given out: free and evictable ones."""
        return self.pool.free_count + self.tree.evictable_count

    @property
    def usable_count(self) -> int:
        """Pages that requests can have at all."""
        return self.pool.num_pages - len(self.quarantined)

    @property
    def usable_tokens(self) -> int:
        """Tokens that those pages hold."""
        return self.usable_count * self.page_size

    def at_page_end(self, decode: RowIndexes) -> RowIndexes:
        """Those of the rows that need a page for their next token."""
        rows = self.rows
        return decode[(rows.cached_len // self.page_size >= rows.num_pages)[decode]]

    # Rows

    def find_prefix(self, req: Req) -> Match:
        """What of a waiting request is cached, with at least one token left to compute."""
        most_pages = (req.known_len - 1) // self.page_size
        return self.tree.match(req.known_ids, req.submission.cache_salt, most_pages)

    def lacking_pages(self, req: Req, match: Match) -> int:
        """How many more pages than can be given out it takes to admit `req` on `match`; at most 0
        when there are enough. Those of the match that are evictable now will not be, and each row
        that may grow keeps a page for it, so that who is admitted is not preempted at once.
        """
        needed = ceil_div(req.known_len, self.page_size) - match.num_pages
        may_grow = self.rows.live & (self.rows.limit_len > self.rows.num_pages * self.page_size)
        needed += int(np.count_nonzero(may_grow))
        return needed - self.available_count + self.tree.evictable_in(match)

    def open_row(self, req: Req, generation: int, match: Match) -> tuple[int, TableWrite]:
        """Give `req` a row on what is cached of it, and pages for all its known ids.

        `generation` tells this opening from every other. `lacking_pages` said that it can be.
        """
        cached_locs = match.locs
        idx = self.rows.open(req, generation, self.tree.lock(match), match.num_pages)
        self.ledger.note(ChangeReason.HIT, PageState.LOCKED, cached_locs, req.arrival)
        missing = ceil_div(req.known_len, self.page_size) - match.num_pages
        own_locs = self._allocate(np.full(missing, req.arrival, dtype=np.int64))
        self.rows.num_pages[idx] += missing
        return idx, self.page_table.write_run(idx, 0, np.concatenate((cached_locs, own_locs)))

    def grow(self, rows: RowIndexes) -> TableWrite:
        """Give each row one page more. Rows are distinct. Errors: TreeError, with nothing changed,
        when fewer are free or evictable.
        """
        if not len(rows):
            return NO_WRITE
        page_indexes = self.rows.num_pages[rows]
        first_locs = self._allocate(self.rows.arrival[rows])
        self.rows.num_pages[rows] = page_indexes + 1
        return self.page_table.write(rows, page_indexes, first_locs)

    def _allocate(self, arrivals: NDArray[np.int64]) -> Int32Array:
        """First locs of a page for each of these requests, evicting where none is free."""
        if len(arrivals) > self.pool.free_count:
            self.evict(arrivals[self.pool.free_count :], ChangeReason.EVICTED)
        first_locs = self.pool.allocate(len(arrivals))
        self.ledger.note(ChangeReason.ALLOCATED, PageState.PRIVATE, first_locs, arrivals)
        return first_locs

    def evict(self, arrivals: NDArray[np.int64], reason: ChangeReason) -> None:
        """Evict a page for each of these requests. Errors: TreeError, with nothing changed."""
        evictions = self.tree.evict(len(arrivals))
        locs = np.frombuffer(b"".join(eviction.locs for eviction in evictions), dtype=np.int32)
        self._free(locs)
        self.ledger.note(reason, PageState.FREE, locs, arrivals)
        self._evictions.note(evictions, self.ledger.plan_id, arrivals.tolist())
        self.evicted_total += len(locs)

    def flush(self, most_pages: int | None = None) -> int:
        """Evict all that is evictable, or as many pages. Returns how many that were."""
        count = self.tree.evictable_count
        if most_pages is not None:
            count = min(count, most_pages)
        self.evict(np.full(count, NOBODY, dtype=np.int64), ChangeReason.FLUSHED)
        return count

    def close_row(self, idx: int, reason: ChangeReason) -> None:
        """End a row: what the tree can use of it is shared, the rest is free, for the plan that
        closes it. Of one that failed nothing stays in the tree but what other rows hold: K and V
        that are no numbers would fail all that hit them. Errors: PoolError, with nothing changed,
        for a row that is not open.
        """
        req, tail = self.rows.req[idx], self.rows.tail[idx]
        if req is None or tail is None:
            raise PoolError(f"row {idx} is closed and not open")
        if reason is not ChangeReason.FAILED:
            self.share(np.array([idx], dtype=np.intp))
            tail = self.rows.tail[idx]
            assert tail is not None
        private = self.private_locs(idx)
        self._free(private)
        self.ledger.note(reason, PageState.FREE, private, req.arrival)
        released = np.frombuffer(self.tree.unlock(tail), dtype=np.int32)
        self.ledger.note(reason, PageState.EVICTABLE, released, req.arrival)
        self.rows.close(idx)
        if reason is ChangeReason.FAILED:
            tails = [tail for tail in self.rows.tail if tail is not None]
            gone = self.tree.cut_where(lambda locs: np.isin(locs, released), tails)
            gone_locs = np.frombuffer(gone, dtype=np.int32)
            self._free(gone_locs)
            self.ledger.note(reason, PageState.FREE, gone_locs, req.arrival)

    def _free(self, first_locs: Int32Array, same_as: Int32Array | None = None) -> None:
        """Nobody points at these pages from the next plan on; rows that did may go on with
        `same_as`. Errors: PoolError, with nothing changed.
        """
        self.pool.free(first_locs)
        self.known.note_removed(first_locs, same_as)

    # Sharing

    def rows_to_share(self, running: RowIndexes) -> RowIndexes:
        """Rows with full pages of known ids that the tree is to have now: prompts at once, what was
        sampled a stride at a time, and not too many rows in one step.
        """
        rows = self.rows
        full = np.minimum(rows.cached_len, rows.known_len) // self.page_size
        new = full - rows.num_tree_pages
        due = rows.num_tree_pages < rows.prompt_len // self.page_size
        due |= new >= self._share_stride_pages
        due &= new > 0
        return running[due[running]][: self._share_rows]

    def share(self, rows: RowIndexes) -> dict[int, TableWrite]:
        """Put full pages of known ids into the tree: the plans that fill them were sent.

        Where the tree has the same ids already, a row is to point at the tree's pages, as the
        writes say, and its own are free, both with the next plan. Returns the writes by row.
        """
        self.note_known(rows)
        page_size, table, all_ids = self.page_size, self.page_table.locs, self.rows.ids
        begins = self.rows.num_tree_pages[rows]
        ends = np.minimum(self.rows.cached_len[rows], self.rows.known_len[rows]) // page_size
        shared: list[bytes] = []
        duplicates: list[tuple[int, int, Inserted]] = []
        for idx, begin, end in zip(rows.tolist(), begins.tolist(), ends.tolist(), strict=True):
            tail = self.rows.tail[idx]
            assert tail is not None
            ids = all_ids[idx, begin * page_size : end * page_size].tobytes()
            locs = table[idx, begin * page_size : end * page_size : page_size].tobytes()
            inserted = self.tree.insert(tail, ids, locs)
            self.rows.tail[idx] = inserted.tail
            shared.append(inserted.shared)
            if inserted.duplicates:
                duplicates.append((idx, begin, inserted))
        self.rows.num_tree_pages[rows] = np.maximum(begins, ends)
        counts = [len(locs) // LOC_BYTES for locs in shared]
        arrivals = np.repeat(self.rows.arrival[rows], counts)
        first_locs = np.frombuffer(b"".join(shared), dtype=np.int32)
        self.ledger.note(ChangeReason.SHARED, PageState.LOCKED, first_locs, arrivals)
        return {idx: self._remap(idx, begin, inserted) for idx, begin, inserted in duplicates}

    def _remap(self, idx: int, begin: int, inserted: Inserted) -> TableWrite:
        """Let a row point at pages of the tree, and free those that it has there."""
        arrival, writes = int(self.rows.arrival[idx]), []
        for nth, tree_locs in inserted.duplicates:
            locs = np.frombuffer(tree_locs, dtype=np.int32)
            own = self.page_table.first_locs(idx, begin + nth, begin + nth + len(locs))
            self._free(own, same_as=locs)
            self.ledger.note(ChangeReason.DUPLICATE_FREED, PageState.FREE, own, arrival)
            self.ledger.note(ChangeReason.REMAPPED, PageState.LOCKED, locs, arrival)
            writes.append(self.page_table.write_run(idx, begin + nth, locs))
        return joined(writes)

    def note_filled(self, plan_id: int, steps: RowSteps) -> None:
        """The plan with these steps fills pages."""
        page_size, table = self.page_size, self.page_table.locs
        device_lens = steps.cached_lens + steps.extend_lens
        filling = np.flatnonzero(device_lens % page_size < steps.extend_lens)
        rows, ends = steps.rows[filling], device_lens[filling] // page_size
        self.filled_by[table[rows, ends * page_size - 1] // page_size] = plan_id
        for nth in filling[steps.extend_lens[filling] > page_size].tolist():  # more than the last
            begin, end = steps.cached_lens[nth] // page_size, device_lens[nth] // page_size
            first_locs = self.page_table.first_locs(steps.rows[nth], begin, end)
            self.filled_by[first_locs // page_size] = plan_id

    def note_known(self, rows: RowIndexes) -> None:
        """Note, for the journal, which pages of these rows became full of known ids."""
        self.known.note_rows(rows, self.rows, self.page_table, self.filled_by)

    def renote_known(self) -> None:
        """Note all of them, and of the tree, as if nothing had been noted before."""
        self.known.restart(self.tree, self.rows, self.filled_by)
        self.note_known(np.flatnonzero(self.rows.live))

    def table_digest(self) -> int:
        """Of the page table once the step just made is executed, as `runner.proto` says."""
        rows = np.array(self.rows.open_rows, dtype=np.int32)
        return table_digest(self.page_table.locs, rows, self.rows.cached_len[rows])

    # Starting over

    def drop_rows(self, last_plan_id: int, reason: ChangeReason) -> None:
        """Every row is gone with its private pages. Of the tree stays what plans up to
        `last_plan_id` filled, and what it stands on.
        """
        for idx in self.rows.open_rows:
            req = self.rows.req[idx]
            assert req is not None
            locked = self.page_table.first_locs(idx, 0, int(self.rows.num_tree_pages[idx]))
            self.ledger.note(reason, PageState.FREE, self.private_locs(idx), req.arrival)
            self.ledger.note(reason, PageState.EVICTABLE, locked, req.arrival)
            self.rows.close(idx)
        dropped = self.tree.cut_where(
            lambda locs: self.filled_by[locs // self.page_size] > last_plan_id, tails=()
        )
        gone = np.frombuffer(dropped, dtype=np.int32)
        self.ledger.note(reason, PageState.FREE, gone, NOBODY)
        self.free_the_rest()

    def free_the_rest(self) -> None:
        """Every page that is in neither tree, row nor quarantine is free."""
        used = np.zeros(self.pool.num_pages, dtype=np.bool_)
        used[list(self.quarantined)] = True
        for node in self.tree.nodes():
            used[np.frombuffer(node.locs, dtype=np.int32) // self.page_size] = True
        for idx in self.rows.open_rows:
            used[self.first_locs(idx) // self.page_size] = True
        self.pool.reset(np.flatnonzero(~used)[::-1])
        self.known.rewrite_due = True  # it was not told page by page

    def miss(self, req: Req, match: Match) -> Miss:
        """Why `match`, made just now, ends where it does."""
        return miss_of(req.known_ids, match, self.page_size, self._evictions)

    def first_locs(self, idx: int) -> Int32Array:
        """First locs of a row's pages in order of position, int32[num_pages]."""
        return self.page_table.first_locs(idx, 0, int(self.rows.num_pages[idx]))

    def private_locs(self, idx: int) -> Int32Array:
        """Likewise of the pages that are the row's alone."""
        begin, end = int(self.rows.num_tree_pages[idx]), int(self.rows.num_pages[idx])
        return self.page_table.first_locs(idx, begin, end)

    def check_counters(self) -> None:
        """Check the equation by the counters, cheap enough after every plan. Errors:
        IntegrityError.
        """
        counts = {
            "free": self.pool.free_count,
            "evictable": self.tree.evictable_count,
            "locked": self.tree.locked_count,
            "private": self.private_count,
            "quarantined": len(self.quarantined),
        }
        if sum(counts.values()) != self.pool.num_pages:
            told = " + ".join(f"{name} {count}" for name, count in counts.items())
            raise IntegrityError(f"{told} != num_pages {self.pool.num_pages}")
