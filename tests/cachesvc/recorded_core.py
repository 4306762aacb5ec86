"""A core that writes down its events, so that another one can be told the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from cachesvc.core import Core
from cachesvc.limits import Limits
from cachesvc.manager import CacheManager
from servicekit.plan import Plan
from servicekit.plan_codec import encode_plan
from tests.cachesvc.memory_journal import MemoryJournal


class Event(NamedTuple):
    """A call from outside, and what came of it: an error, plans as bytes, or anything equal."""

    name: str
    arguments: tuple[Any, ...]
    outcome: Any


def flush(core: Core) -> int:
    return core.ready_scheduler().manager.flush()


class RecordedCore(Core):
    """`events` are the calls from outside, in order."""

    def __init__(self, limits: Limits, journal: MemoryJournal | None = None) -> None:
        self.journal = journal or MemoryJournal()
        super().__init__(limits, self.journal)
        self.events: list[Event] = []
        self._limits_given = limits
        self._is_inside = False

    def _call(self, name: str, act: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if self._is_inside:
            return act(*arguments)
        self._is_inside = True
        try:
            outcome = act(*arguments)
        except Exception as error:
            self.events.append(Event(name, arguments, type(error)))
            raise
        finally:
            self._is_inside = False
        self.events.append(Event(name, arguments, _told(outcome)))
        return outcome

    def flush(self) -> int:
        count: int = self._call("flush", lambda: flush(self), ())
        return count

    def damage(self, damage: Callable[[CacheManager], bool]) -> bool:
        """Break the books."""
        broken: bool = self._call(
            "damage", lambda kind: kind(self.ready_scheduler().manager), (damage,)
        )
        return broken

    def replay(self) -> None:
        """Tell the same events to another core: everything comes out the same, byte for byte."""
        other = RecordedCore(self._limits_given, MemoryJournal(self.journal.found))
        other.stream.manager_id = self.stream.manager_id
        for event in self.events:
            with suppress(*[event.outcome] if isinstance(event.outcome, type) else ()):
                getattr(other, event.name)(*event.arguments)
        for event, again in zip(self.events, other.events, strict=True):
            assert event.outcome == again.outcome, event.name
        assert other.journal.written == self.journal.written


def _recorded(name: str) -> Callable[..., Any]:
    def method(self: RecordedCore, *arguments: Any) -> Any:
        return self._call(name, getattr(super(RecordedCore, self), name), arguments)

    return method


for _name in (
    "submit",
    "stop",
    "cancel",
    "close_session",
    "tick",
    "attached",
    "lost",
    "next_plan",
    "result",
    "refused",
    "runner_failed",
    "runner_drained",
    "check_integrity",
    "take_outputs",
):
    setattr(RecordedCore, _name, _recorded(_name))


def _told(outcome: Any) -> Any:
    """What compares: plans as bytes, numbers and words as they are; outputs are checked as tokens,
    elsewhere.
    """
    if isinstance(outcome, Plan):
        return encode_plan(outcome).SerializeToString(deterministic=True)
    if isinstance(outcome, list):
        return [_told(part) for part in outcome if isinstance(part, Plan | str)]
    return outcome
