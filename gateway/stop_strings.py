"""Finds stop strings in text that arrives in pieces, and holds back only what may become one.

An Aho-Corasick automaton: its state after a text is the longest end of that text which starts some
stop string, so the state's depth is exactly what must be held, and each character costs the same
whatever the stop strings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from servicekit.errors import InvalidArgument, Reason

MAX_STOP_CHARS = 256


def _invalid(message: str) -> InvalidArgument:
    return InvalidArgument(Reason.INVALID_FIELD, message, field="stop.strings")


@dataclass(slots=True, eq=False)
class _Node:
    """A beginning of a stop string."""

    depth: int  # its number of characters
    children: dict[str, _Node] = field(default_factory=dict)
    fallback: _Node | None = (
        None  # the longest proper end of it that is a beginning too; None at the root
    )
    match: str | None = None  # the longest stop string that it ends with


class StopStrings:
    """The stop strings of one generation, and the text held back for them.

    The match that ends first wins; of those that end together, the one that starts first. The text
    released and the match depend on the whole text alone, not on how it was cut into pieces.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        """With `include_stop` the match itself is released too. InvalidArgument when a stop string
        is empty or longer than MAX_STOP_CHARS.
        """
        if "" in stops:
            raise _invalid("stop.strings holds an empty string; leave it out")
        longest = max(map(len, stops), default=0)
        if longest > MAX_STOP_CHARS:
            raise _invalid(
                f"stop.strings holds one of {longest} characters; at most {MAX_STOP_CHARS} are "
                "allowed"
            )
        self._include_stop = include_stop
        self._root = _build(stops)
        self._node = self._root
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text; None while none has."""
        return self._matched

    def push(self, text: str) -> str:
        """Takes the next piece of text, gives what can no longer become part of a stop string.

        Up to the match when there is one, or with it; nothing after it, then or later.
        """
        if self._matched is not None:
            return ""
        if not self._root.children:
            return text
        pending = self._held + text
        for idx, char in enumerate(text):
            self._node = self._after(char)
            if self._node.match is not None:
                self._matched = self._node.match
                end = len(self._held) + idx + 1
                self._held = ""
                return pending[: end if self._include_stop else end - len(self._matched)]
        released_chars = len(pending) - self._node.depth
        self._held = pending[released_chars:]
        return pending[:released_chars]

    def flush(self) -> str:
        """What is still held, for a text that ends here without a stop string."""
        held, self._held = self._held, ""
        self._node = self._root
        return held

    def _after(self, char: str) -> _Node:
        """The state after one more character."""
        node = self._node
        while char not in node.children:
            if node.fallback is None:
                return node
            node = node.fallback
        return node.children[char]


def _build(stops: Sequence[str]) -> _Node:
    root = _Node(depth=0)
    for stop in stops:
        node = root
        for char in stop:
            node = node.children.setdefault(char, _Node(depth=node.depth + 1))
        node.match = stop
    queue = deque([root])
    while queue:  # shorter beginnings first: a fallback is always shorter
        parent = queue.popleft()
        for char, child in parent.children.items():
            child.fallback = _fallback(parent, char, root)
            child.match = child.match or child.fallback.match
            queue.append(child)
    return root


def _fallback(parent: _Node, char: str, root: _Node) -> _Node:
    node = parent.fallback
    while node is not None:
        if char in node.children:
            return node.children[char]
        node = node.fallback
    return root
