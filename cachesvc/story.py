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
    SUSPECT = 9


class MatchEnd(IntEnum):
    """Names and numbers of cache.proto's MatchEnd, which says more."""

    WHOLE = 1
    DIFFERS = 2
    NEVER_CACHED = 3
    EVICTED = 4


class PreemptionCause(IntEnum):
    """Names and numbers of cache.proto's PreemptionCause, which says more."""

    PAGES_SHORT = 1
    PLAN_REFUSED = 2
    MEMORY_LOST = 3
    BOOKS_HEALED = 4


class Moment(NamedTuple):
    """When something was. Steps only grow; plan ids go back after a refusal, and begin anew with
    another runner.
    """

    step: int
    plan_id: int


class Wait(NamedTuple):
    """A stretch of plans without a request, for one cause."""

    arrival: int | None  # whose cause it is; None: everybody's
    cause: WaitCause
    first_plan_id: int
    last_plan_id: int
    behind: int | None  # the arrival of another request
    lacking_pages: int
    first_step: int
    last_step: int


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
    step: int


class Preemption(NamedTuple):
    """A row was taken, or lost."""

    plan_id: int
    cause: PreemptionCause
    for_arrival: int | None
    lacking_pages: int
    sampled_len: int
    step: int  # the first without it


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
    submitted: Moment  # the first plan that could have admitted it
    is_long: bool = False  # waits with long prompts
    let_in_step: int | None = 0  # None: a further choice of a prompt, not in the queue yet
    waits: list[Wait] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)
    ended: Moment | None = None  # the first plan without it
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

    def waiting_steps(self) -> list[tuple[int, int | None]]:
        """Stretches of steps [first, end) without a row; end None: still."""
        if self.let_in_step is None:
            return []
        begins = [max(self.submitted.step, self.let_in_step)]
        begins += [taken.step for taken in self.preemptions]
        ends = [given.step for given in self.admissions]
        if self.ended is not None:
            ends.append(self.ended.step)
        return [(begin, next((end for end in ends if end >= begin), None)) for begin in begins]


class Stories:
    """Owns the stories of live requests and of the last that ended, what everybody waited for, and
    the count of steps.
    """

    def __init__(self) -> None:
        self.now = Moment(0, 0)
        self._by_arrival: dict[int, Story] = {}
        self._by_label: dict[str, list[Story]] = {}  # by request_id, in order of arrival
        self._ended: deque[Story] = deque()
        self._all_waited: deque[Wait] = deque(maxlen=MAX_SPANS)
        self._long_waited: deque[Wait] = deque(maxlen=MAX_SPANS)

    # Time

    def begin_step(self, plan_id: int) -> None:
        """A plan is about to be made."""
        self.now = Moment(self.now.step + 1, plan_id)

    def next_moment(self, plan_id: int) -> Moment:
        """Of the first plan that what happens now can change."""
        return Moment(self.now.step + 1, plan_id)

    # Requests

    def begin(self, story: Story) -> None:
        self._by_arrival[story.arrival] = story
        self._by_label.setdefault(story.request_id, []).append(story)

    def end(self, story: Story) -> None:
        """It is complete; as many as `MAX_ENDED` are kept."""
        self._ended.append(story)
        if len(self._ended) > MAX_ENDED:
            oldest = self._ended.popleft()
            del self._by_arrival[oldest.arrival]
            with_label = self._by_label[oldest.request_id]
            with_label.remove(oldest)
            if not with_label:
                del self._by_label[oldest.request_id]

    def find(self, request_id: str) -> Story | None:
        """The latest story of that label."""
        with_label = self._by_label.get(request_id)
        return with_label[-1] if with_label else None

    def label_of(self, arrival: int | None) -> str:
        """request_id of a request; "" when it is forgotten, or there is none."""
        story = None if arrival is None else self._by_arrival.get(arrival)
        return "" if story is None else story.request_id

    # Waiting

    def all_waited(self, arrival: int, cause: WaitCause, lacking_pages: int = 0) -> None:
        """Neither that request was admitted, nor any behind it."""
        step, plan_id = self.now
        wait = Wait(arrival, cause, plan_id, plan_id, None, lacking_pages, step, step)
        _extend(self._all_waited, wait)

    def long_waited(self, arrival: int, cause: WaitCause) -> None:
        """Neither that long request was admitted, nor any long one behind it."""
        step, plan_id = self.now
        _extend(self._long_waited, Wait(arrival, cause, plan_id, plan_id, None, 0, step, step))

    def runner_came(self, plan_id: int) -> None:
        """A time without a runner is over: it took the place of a step."""
        self.begin_step(plan_id)
        step = self.now.step
        wait = Wait(None, WaitCause.NO_RUNNER, plan_id, plan_id, None, 0, step, step)
        self._all_waited.append(wait)

    def let_in(self, story: Story, first_choice: int) -> None:
        """A further choice of a prompt, which waited for the one at `first_choice`, goes on."""
        step, plan_id = self.now
        story.let_in_step = step
        story.waits += self.held(story, first_choice, Moment(step - 1, plan_id - 1))

    def held(self, story: Story, first_choice: int, last: Moment) -> list[Wait]:
        """How long a further choice of a prompt waited for the first one by now, if at all."""
        first = story.submitted
        if first.step > last.step:
            return []
        cause, plans = WaitCause.FIRST_CHOICE, (first.plan_id, last.plan_id)
        return [Wait(story.arrival, cause, *plans, first_choice, 0, first.step, last.step)]

    def waits_of(self, story: Story) -> list[Wait]:
        """What a request waited for, in order: causes of its own, or another one before it."""
        waits = list(story.waits)
        spans = [*self._all_waited, *(self._long_waited if story.is_long else ())]
        for begin, end in story.waiting_steps():
            waits += [
                told for span in spans if (told := _part_of(span, story, begin, end)) is not None
            ]
        return sorted(waits, key=lambda wait: wait.first_step)


def _part_of(span: Wait, story: Story, begin: int, end: int | None) -> Wait | None:
    """What of a span was a wait of `story`, which had no row in steps [begin, end)."""
    first = max(span.first_step, begin)
    last = span.last_step if end is None else min(span.last_step, end - 1)
    if first > last:
        return None
    part = span._replace(
        first_plan_id=span.first_plan_id + first - span.first_step,
        last_plan_id=span.last_plan_id - (span.last_step - last),
        first_step=first,
        last_step=last,
    )
    if span.arrival in (None, story.arrival):
        return part._replace(arrival=story.arrival)
    behind = WaitCause.BEHIND
    return part._replace(arrival=story.arrival, cause=behind, behind=span.arrival, lacking_pages=0)


def _extend(waits: deque[Wait], wait: Wait) -> None:
    """Append, or let the last one go on."""
    last = waits[-1] if waits else None
    goes_on = (
        last is not None
        and (last.arrival, last.cause) == (wait.arrival, wait.cause)
        and last.last_step + 1 == wait.first_step
        and last.last_plan_id + 1 == wait.first_plan_id
    )
    if last is not None and goes_on:
        waits[-1] = wait._replace(first_plan_id=last.first_plan_id, first_step=last.first_step)
    else:
        waits.append(wait)
