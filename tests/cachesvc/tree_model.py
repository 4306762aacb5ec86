"""What a prefix tree should do, page by page, in a dict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Page = tuple[int, ...]  # its ids
Place = tuple[str, tuple[Page, ...]]  # salt, and all pages up to this one


@dataclass
class CachedPage:
    loc: int
    last_used: int = 0


@dataclass(eq=False)
class ModelRow:
    """A row that holds the first pages of a sequence."""

    salt: str
    pages: list[Page] = field(default_factory=list)

    def places(self) -> list[Place]:
        return [(self.salt, tuple(self.pages[: nth + 1])) for nth in range(len(self.pages))]


class TreeModel:
    """Cached pages by place; who holds them is known from the rows."""

    def __init__(self) -> None:
        self.cached: dict[Place, CachedPage] = {}
        self.rows: list[ModelRow] = []
        self._clock = 0

    def match(self, salt: str, pages: list[Page]) -> list[int]:
        """First locs of the longest cached stretch."""
        locs: list[int] = []
        for place in ModelRow(salt, pages).places():
            if place not in self.cached:
                break
            locs.append(self.cached[place].loc)
        return locs

    def lock(self, salt: str, pages: list[Page]) -> ModelRow:
        row = ModelRow(salt, pages[: len(self.match(salt, pages))])
        self.rows.append(row)
        self._touch(row)
        return row

    def insert(self, row: ModelRow, pages: list[Page], locs: list[int]) -> list[int]:
        """Returns the row's first locs afterwards: where a page is there already, the tree's."""
        row.pages = row.pages + pages
        for place, loc in zip(row.places()[-len(pages) :], locs, strict=True):
            self.cached.setdefault(place, CachedPage(loc, self._clock))
        return self.match(row.salt, row.pages)[-len(pages) :]

    def unlock(self, row: ModelRow) -> list[int]:
        """Returns first locs of the pages that nobody holds any more."""
        held = self.holders()
        self.rows.remove(row)
        self._touch(row)
        return [self.cached[place].loc for place in row.places() if held[place] == 1]

    def holders(self) -> dict[Place, int]:
        """How many rows hold each cached page."""
        held = dict.fromkeys(self.cached, 0)
        for row in self.rows:
            for place in row.places():
                held[place] += 1
        return held

    def evictable(self) -> dict[int, Place]:
        """Pages that could go next, by loc: held by nobody, and nothing stands on them."""
        parents = {(salt, pages[:-1]) for salt, pages in self.cached}
        return {
            self.cached[place].loc: place
            for place, count in self.holders().items()
            if count == 0 and place not in parents
        }

    def evict(self, loc: int, *, oldest: bool) -> None:
        """A page goes; `oldest`: it is the one used longest ago, or one of those."""
        candidates = self.evictable()
        assert loc in candidates, "held, or something stands on it"
        if oldest:
            last_used = min(self.cached[place].last_used for place in candidates.values())
            assert self.cached[candidates[loc]].last_used == last_used
        del self.cached[candidates[loc]]

    def cut(self, bad_loc: int) -> set[int]:
        """A page goes with all that stands on it, and with the rows that hold it. Returns the locs
        that went.
        """
        ((salt, bad),) = [place for place, page in self.cached.items() if page.loc == bad_loc]
        gone = {place for place in self.cached if place[0] == salt and place[1][: len(bad)] == bad}
        self.rows = [row for row in self.rows if gone.isdisjoint(row.places())]
        return {self.cached.pop(place).loc for place in gone}

    def locs_in_use(self) -> Iterable[int]:
        return (page.loc for page in self.cached.values())

    def _touch(self, row: ModelRow) -> None:
        self._clock += 1
        for place in row.places():
            self.cached[place].last_used = self._clock
