"""How many plans are sent ahead of their results: as many as hide the way between the services."""

from __future__ import annotations

from servicekit.arith import ceil_div

LEAST, MOST = 2, 4
HOP_US = 2000  # until a plan that waits for a result is launched: a slow percent on a busy host


class Credits:
    """A number that is given, or one that follows from how long decode steps take.

    While a result comes here and the plan that waited for it gets there, the device has the plans
    between: steps of `device_us` hide the way when `count - 1` of them take HOP_US. More than that
    would be computed for nothing when a request ends.
    """

    def __init__(self, given: int | None) -> None:
        self._given = given
        self.count = LEAST if given is None else given

    def note_decode(self, device_us: int) -> None:
        """A step that computed no prompt took the device so long."""
        if self._given is None:
            self.count = min(max(1 + ceil_div(HOP_US, max(device_us, 1)), LEAST), MOST)
