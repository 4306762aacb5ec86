"""Requests without a row, in the order in which they get one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from operator import attrgetter

from sortedcontainers import SortedKeyList, SortedList

from cachesvc.request import Req

_RANK = attrgetter("rank")


class WaitingQueue:
    """Waiting requests by rank: long ones and others, since a long one may have to wait for another
    while shorter ones go on; and apart from them the further choices of a prompt whose first choice
    has not shared it yet. Deadlines are of those that wait, and of no others.
    """

    def __init__(self, long_len: int) -> None:
        self._long_len = long_len
        self._short: SortedKeyList[Req] = SortedKeyList(key=_RANK)
        self._long: SortedKeyList[Req] = SortedKeyList(key=_RANK)
        self._held: dict[int, SortedKeyList[Req]] = {}  # further choices, by arrival of the first
        self._deadlines: SortedList[tuple[float, int]] = SortedList()
        self._with_deadline: dict[int, Req] = {}  # by arrival

    def __len__(self) -> int:
        return len(self._short) + len(self._long) + sum(map(len, self._held.values()))

    def __iter__(self) -> Iterator[Req]:
        """All of them, by rank."""
        lists = (self._short, self._long, *self._held.values())
        return iter(list(merge(*lists, key=_RANK)))

    @property
    def first_short(self) -> Req | None:
        return self._short[0] if self._short else None

    @property
    def first_long(self) -> Req | None:
        return self._long[0] if self._long else None

    def is_long(self, req: Req) -> bool:
        return req.known_len > self._long_len

    def add(self, req: Req) -> None:
        self._list_of(req).add(req)
        req.story.is_long = self.is_long(req)
        if req.deadline_s is not None:
            self._deadlines.add((req.deadline_s, req.arrival))
            self._with_deadline[req.arrival] = req

    def remove(self, req: Req) -> None:
        self._list_of(req).remove(req)
        if req.first_choice is not None and not self._held[req.first_choice.arrival]:
            del self._held[req.first_choice.arrival]
        if req.deadline_s is not None:
            self._deadlines.remove((req.deadline_s, req.arrival))
            del self._with_deadline[req.arrival]

    def _list_of(self, req: Req) -> SortedKeyList[Req]:
        if req.first_choice is not None:
            return self._held.setdefault(req.first_choice.arrival, SortedKeyList(key=_RANK))
        return self._long if self.is_long(req) else self._short

    def let_in(self, is_shared: Callable[[Req], bool]) -> list[tuple[Req, Req]]:
        """Let further choices in whose first choice has shared its prompt; where that one ended too
        early, one of them takes its place. Returns those let in, each with its first choice.
        """
        entered: list[tuple[Req, Req]] = []
        for held in [list(of_prompt) for of_prompt in self._held.values()]:
            first = held[0].first_choice
            if first.has_ended:
                for req in held[1:]:
                    self._follow(req, held[0])
                held = held[:1]
            elif not is_shared(first):
                continue
            for req in held:
                self._follow(req, None)
                entered.append((req, first))
        return entered

    def _follow(self, req: Req, first_choice: Req | None) -> None:
        self.remove(req)
        req.first_choice = first_choice
        self.add(req)

    def expired(self, now_s: float) -> list[Req]:
        """Requests whose time is over; they stay until removed."""
        over = self._deadlines.irange(maximum=(now_s, float("inf")))
        return [self._with_deadline[arrival] for _, arrival in over]
