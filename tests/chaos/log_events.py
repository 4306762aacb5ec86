"""Reads what the services log: logfmt lines, as events with the wall clock of the line."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

_PAIR = re.compile(r'([^\s="]+)=(?:"((?:[^"\\]|\\.)*)"|(\S*))')


@dataclass(frozen=True)
class LogEvent:
    """One line. `process` is the name of the log, `at_s` seconds since 1970."""

    process: str
    at_s: float
    level: str
    event: str
    fields: dict[str, str]

    def number(self, key: str) -> int | None:
        """None where the line has no such number."""
        text = self.fields.get(key, "")
        return int(text) if text.isdecimal() else None


def event_of(process: str, line: str) -> LogEvent | None:
    """None for what is no line of a log, as those of a stack."""
    fields = {
        key: re.sub(r"\\(.)", r"\1", quoted) if quoted else plain
        for key, quoted, plain in _PAIR.findall(line)
    }
    if not line.startswith("timestamp=") or "event" not in fields:
        return None
    try:
        at = datetime.fromisoformat(fields.pop("timestamp"))
    except ValueError:
        return None
    level, event = fields.pop("level", ""), fields.pop("event")
    return LogEvent(process, at.timestamp(), level, event, fields)


class LogReader:
    """The events of each file `PROCESS.log` in a directory, as they come."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._offsets: dict[str, int] = {}
        self.events: dict[str, list[LogEvent]] = {}
        self.strays: list[str] = []  # lines that are no event

    def read(self) -> None:
        """Take what came since. A line without its end waits for it."""
        for path in sorted(self._run_dir.glob("*.log")):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path.stem, 0))
                piece = file.read()
            whole = piece[: piece.rfind(b"\n") + 1]
            self._offsets[path.stem] = self._offsets.get(path.stem, 0) + len(whole)
            for line in whole.decode(errors="replace").splitlines():
                self._take(path.stem, line)

    def _take(self, process: str, line: str) -> None:
        if (event := event_of(process, line)) is not None:
            self.events.setdefault(process, []).append(event)
        elif line.strip():
            self.strays.append(f"{process}: {line}")

    def after(self, process: str, event: str, moment_s: float, **fields: str) -> LogEvent | None:
        """The first such event of a process, with such fields, at or after a moment."""
        events = self.events.get(process, [])
        first = bisect_left(events, moment_s, key=lambda each: each.at_s)
        return next(
            (
                each
                for each in events[first:]
                if each.event == event and fields.items() <= each.fields.items()
            ),
            None,
        )

    def total(self, event: str, key: str) -> int:
        """The sum of a number over all such events."""
        numbers = [
            each.number(key)
            for events in self.events.values()
            for each in events
            if each.event == event
        ]
        return sum(number for number in numbers if number is not None)
