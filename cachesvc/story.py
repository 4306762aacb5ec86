"""What `Explain` tells of a request: kept while it lives, and for a while after."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

MAX_ENDED = 4096  # stories kept of requests that ended
MAX_SPANS = 4096  # stretches of plans, of who headed the queue and why it did not go on
MAX_REPEATS = 16  # admissions or preemptions kept of one request


class WaitCause(IntEnum):
    """Names and numbers of cache.proto's WaitCause, which says more."""

    NO_ROW = 1
    NO_PAGES = 2
    NO_BUDGET = 3
    PREEMPTING = 4
    LONG_PREFILLS = 5
    FIRST_CHOICE = 6
    BEHIND = 7
    NO_RUNNER = 8


class MatchEnd(IntEnum):
    """Names and numbers of cache.proto's MatchEnd, which says more."""

    WHOLE = 1
    DIFFERS = 2
    NEVER_CACHED = 3
    EVICTED = 4


class Wait(NamedTuple):
    """Plans first … last without `arrival`, for one cause."""

    arrival: int
    cause: WaitCause
    first_plan_id: int
    last_plan_id: int
    behind: int | None  # the arrival of another request
    lacking_pages: int


class Miss(NamedTuple):
    """Why a match ended at `position`."""

    end: MatchEnd
    position: int
    token_id: int
    evicted_plan_id: int = 0
    evicted_for: int | None = None


class Admission(NamedTuple):
    """A row was given."""

    plan_id: int
    table_idx: int
    cached_len: int
    miss: Miss


class Preemption(NamedTuple):
    """A row was taken."""

    plan_id: int
    for_arrival: int
    lacking_pages: int
    sampled_len: int


@dataclass(slots=True, eq=False)
class Story:
    """One request's. `waits` are its own; what it waited behind is in `Stories.head_waits`.

    It holds no token: it outlives the request.
    """

    arrival: int
    session_id: int
    key: int
    request_id: str
    priority: int
    prompt_len: int
    traceparent: str
    submitted_plan_id: int
    waits: list[Wait] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)
    ended_plan_id: int = 0
    end: str = ""  # a FinishCause, STOPPED or CANCELLED
    sampled_len: int = 0  # by its end

    def admitted(self, admission: Admission) -> None:
        """The first and the latest are kept."""
        self.admissions.append(admission)
        if len(self.admissions) > MAX_REPEATS:
            del self.admissions[1]

    def preempted(self, preemption: Preemption) -> None:
        self.preemptions.append(preemption)
        del self.preemptions[:-MAX_REPEATS]

    def waiting_since(self) -> list[tuple[int, int | None]]:
        """Stretches of plans [first, end) without a row; end None: still."""
        begins = [self.submitted_plan_id, *(taken.plan_id for taken in self.preemptions)]
        ends = [given.plan_id for given in self.admissions] + (
            [self.ended_plan_id] if self.ended_plan_id else []
        )
        return [(begin, next((end for end in ends if end >= begin), None)) for begin in begins]


class Stories:
    """Owns the stories of live requests and of the last that ended, and of the queue's head."""

    def __init__(self) -> None:
        self._by_arrival: dict[int, Story] = {}
        self._latest: dict[str, Story] = {}  # by request_id
        self._ended: deque[Story] = deque()
        self.head_waits: deque[Wait] = deque(maxlen=MAX_SPANS)

    def begin(self, story: Story) -> None:
        self._by_arrival[story.arrival] = self._latest[story.request_id] = story

    def end(self, story: Story) -> None:
        """It is complete; as many as `MAX_ENDED` are kept."""
        self._ended.append(story)
        if len(self._ended) > MAX_ENDED:
            oldest = self._ended.popleft()
            del self._by_arrival[oldest.arrival]
            if self._latest.get(oldest.request_id) is oldest:
                del self._latest[oldest.request_id]

    def find(self, request_id: str) -> Story | None:
        """The latest story of that label."""
        return self._latest.get(request_id)

    def label_of(self, arrival: int | None) -> str:
        """request_id of a request; "" when it is forgotten, or there is none."""
        story = None if arrival is None else self._by_arrival.get(arrival)
        return "" if story is None else story.request_id

    def head_waited(self, wait: Wait) -> None:
        """The head of the queue was not admitted to the plan wait.last_plan_id."""
        _extend(self.head_waits, wait)

    def waits_of(self, story: Story) -> list[Wait]:
        """What a request waited for: its own causes, or another one at the head of the queue."""
        waits = list(story.waits)
        for begin, end in story.waiting_since():
            for head in self.head_waits:
                first = max(head.first_plan_id, begin)
                last = head.last_plan_id if end is None else min(head.last_plan_id, end - 1)
                if first > last:
                    continue
                if head.arrival == story.arrival:
                    waits.append(head._replace(first_plan_id=first, last_plan_id=last))
                else:
                    waits.append(
                        Wait(story.arrival, WaitCause.BEHIND, first, last, head.arrival, 0)
                    )
        return sorted(waits, key=lambda wait: wait.first_plan_id)


def passed_over(story: Story, wait: Wait) -> None:
    """A request further back was considered for a plan, and not admitted to it."""
    _extend(story.waits, wait)
    del story.waits[:-MAX_REPEATS]


def _extend(waits: list[Wait] | deque[Wait], wait: Wait) -> None:
    """Append, or let the last one go on."""
    last = waits[-1] if waits else None
    if last is not None and last[:2] == wait[:2] and last.behind == wait.behind:
        waits[-1] = wait._replace(first_plan_id=last.first_plan_id)
    else:
        waits.append(wait)
