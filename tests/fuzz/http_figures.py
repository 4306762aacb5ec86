"""What was sent over HTTP, and how it ended."""

from __future__ import annotations

from collections import Counter


class HttpFigures:
    def __init__(self) -> None:
        self.kinds: Counter[tuple[str, str]] = Counter()  # by route and kind
        self.codes: Counter[str] = Counter()
        self.findings: list[str] = []

    def note(self, route: str, kind: str, code: int | str) -> None:
        self.kinds[route, kind] += 1
        self.codes[str(code)] += 1
