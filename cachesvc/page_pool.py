"""Pages that nobody uses. A page goes by its first loc, `page_id * page_size`, on the way in and
out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servicekit.plan import Int32Array


class PoolError(Exception):
    """The pool was asked for what it cannot do: our own mistake, never a user's."""


class PagePool:
    """A stack of free pages; the page freed last is given out first. O(1) a page, no allocation of
    memory after construction.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._free_pages: Int32Array = np.arange(num_pages - 1, -1, -1, dtype=np.int32) * np.int32(
            page_size
        )
        self._free_count = num_pages
        self._is_free: NDArray[np.bool_] = np.ones(num_pages, dtype=np.bool_)

    @property
    def free_count(self) -> int:
        """How many pages are free."""
        return self._free_count

    def allocate(self, count: int) -> Int32Array:
        """First locs of `count` pages, int32[count]. Errors: PoolError, with nothing taken, when
        fewer are free.
        """
        if count > self._free_count:
            raise PoolError(f"{count} pages asked for, {self._free_count} of {self.num_pages} free")
        self._free_count -= count
        taken = self._free_pages[self._free_count : self._free_count + count][::-1].copy()
        self._is_free[taken // self.page_size] = False
        return taken

    def free(self, first_locs: Int32Array) -> None:
        """Take pages back, int32[n]. Errors: PoolError, with nothing changed, for a loc that begins
        no page or a page that is free.
        """
        page_ids = first_locs // self.page_size
        if (first_locs % self.page_size).any() or not (
            page_ids.view(np.uint32) < self.num_pages  # a negative one is large, unsigned
        ).all():
            raise PoolError(f"not first locs of pages: {first_locs.tolist()}")
        ordered = np.sort(page_ids)
        if self._is_free[page_ids].any() or (ordered[1:] == ordered[:-1]).any():
            raise PoolError(f"freed twice: first locs {first_locs.tolist()}")
        self._is_free[page_ids] = True
        self._free_pages[self._free_count : self._free_count + len(first_locs)] = first_locs[::-1]
        self._free_count += len(first_locs)

    def reset(self, page_ids: NDArray[np.intp]) -> None:
        """Exactly these pages are free from now on; the first is given out last."""
        self._is_free[:] = False
        self._is_free[page_ids] = True
        self._free_count = len(page_ids)
        self._free_pages[: len(page_ids)] = page_ids * self.page_size

    @property
    def free_pages(self) -> Int32Array:
        """First locs of free pages, as the stack has them, int32[free_count]."""
        return self._free_pages[: self._free_count].copy()

    @property
    def is_free(self) -> NDArray[np.bool_]:
        """For each page whether it is free, bool[num_pages], a copy."""
        return self._is_free.copy()

    def check_integrity(self) -> None:
        """Recount: the stack holds each free page once and no other. Errors: PoolError."""
        stack = self.free_pages
        if np.any(stack % self.page_size):
            raise PoolError(f"the free list holds locs that begin no page: {stack.tolist()}")
        expected = np.flatnonzero(self._is_free) * self.page_size
        if not np.array_equal(np.sort(stack), expected):
            raise PoolError(
                f"the free list {stack.tolist()} differs from the free pages {expected.tolist()}"
            )
