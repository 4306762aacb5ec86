"""Where the new part of a resumed answer begins."""

from __future__ import annotations

from gateway.text_stream import Delta, Resumed


class Seam:
    """Leaves out of an answer's deltas, all of which pass it, what its client has already."""

    def __init__(self, resumed: Resumed) -> None:
        _, self._had_chars, self._had_ids = resumed

    def new(self, delta: Delta) -> Delta:
        """What of it is new, perhaps nothing."""
        if not (self._had_chars or self._had_ids):
            return delta
        text, token_ids = delta.text[self._had_chars :], delta.token_ids[self._had_ids :]
        self._had_chars -= len(delta.text) - len(text)
        self._had_ids -= len(delta.token_ids) - len(token_ids)
        starts = delta.starts[len(delta.token_ids) - len(token_ids) :]
        return delta._replace(text=text, token_ids=token_ids, starts=starts)
