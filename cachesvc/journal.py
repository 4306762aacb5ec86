"""What the manager writes down so that another one can go on with its cached pages: before a plan
is sent, the pages that are full of known ids by then, and those whose content is given up.

A page is named by its serial number while its content lasts; a page given out again gets another.
So a child never stands on a page that holds something else by now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from servicekit.plan import Int32Array

Int64Array: TypeAlias = NDArray[np.int64]

NO_PARENT = 0  # the page is the first of its sequence


class Filled(NamedTuple):
    """Pages full of known ids, parents before their children; n of them."""

    first_serial: int  # they are numbered from it, at least 1
    page_ids: Int32Array  # [n]
    parents: Int64Array  # [n]: serial of the page before it, or NO_PARENT
    filled_by: Int64Array  # [n]: the plan after which the page holds K and V of its ids
    ids: Int32Array  # [n, page_size]
    salts: tuple[tuple[int, str], ...] = ()  # of pages without a parent, by index, where not ""


class Removed(NamedTuple):
    """Pages whose content is given up, with the plan of their entry; n of them."""

    page_ids: Int32Array  # [n]
    same_as: Int64Array  # [n]: serial of a page with the same content, whose row goes on with it


Change: TypeAlias = Filled | Removed


class Entry(NamedTuple):
    """What a plan changes, in order. Written before the plan is sent."""

    plan_id: int
    changes: tuple[Change, ...]


class Head(NamedTuple):
    """Whose pages these are: a journal begins with it."""

    boot_id: str
    manager_id: str  # who writes it
    former_manager_id: str  # whose plans the runner executed before its own; "": none
    former_last_executed: int  # the last of them
    model_fingerprint: str
    page_size: int
    num_pages: int


class Kept(NamedTuple):
    """A journal as it was found: what an earlier manager held, or why that is of no use."""

    head: Head | None
    entries: Sequence[Entry] = ()
    void_because: str = ""


class Journal(Protocol):
    """Where it is written. Nothing here fails: a journal that cannot be written ends, and whoever
    reads it sees that plans are missing.
    """

    kept: Kept | None  # as it was found; None once it was asked for, or when there was none

    @property
    def is_long(self) -> bool:
        """It is time to replace it by what counts of it."""

    def append(self, entry: Entry) -> None:
        """Write what a plan changes."""

    def discard(self) -> None:
        """What was written is not to be believed any more, at once; `replace` begins anew."""

    def replace(self, head: Head, entry: Entry) -> None:
        """Begin anew, at once or not at all, with everything that is known at a plan."""


class NoJournal:
    """Remembers nothing."""

    kept: Kept | None = None
    is_long = False

    def append(self, entry: Entry) -> None:
        pass

    def discard(self) -> None:
        pass

    def replace(self, head: Head, entry: Entry) -> None:
        pass
