"""Whether anything serves behind this gateway, and since when nothing does."""

from __future__ import annotations

import structlog

log = structlog.get_logger()

OWN_PAUSE_S = 1.0  # between two looks: more than that is this process's own


class ManagerWatch:
    """What is known of the manager. Times are arguments: seconds of a clock that never goes back.

    A manager that says nothing for `silence_s`, though it has a session, hangs: it speaks once a
    second at least.
    """

    def __init__(self, silence_s: float, now_s: float) -> None:
        self._silence_s = silence_s
        self._heard_s: float | None = None  # None: there is no session
        self._looked_s = now_s
        self._said_serving = False
        self._silent = False
        self._outage_since_s: float | None = now_s

    @property
    def serves(self) -> bool:
        """A session is open, the manager speaks, and a runner is behind it."""
        return self._said_serving and not self._silent

    @property
    def silent(self) -> bool:
        return self._silent

    @property
    def outage_since_s(self) -> float | None:
        """Since when nothing serves; None when something does."""
        return self._outage_since_s

    def heard(self, now_s: float) -> bool:
        """The manager said something. Returns whether it was silent before."""
        was_silent, heard_s = self._silent, self._heard_s
        self._heard_s, self._silent = now_s, False
        if was_silent and heard_s is not None:
            log.info("manager answers again", silent_s=round(now_s - heard_s, 3))
            self._note(now_s)
        return was_silent

    def told(self, now_s: float, *, serving: bool) -> None:
        """It said whether requests run now."""
        self._said_serving = serving
        self._note(now_s)

    def moved(self, now_s: float) -> None:
        """Tokens came: that is no outage, as with a manager that drains."""
        if self._outage_since_s is not None:
            self._outage_since_s = now_s

    def lost(self, now_s: float) -> None:
        """There is no session."""
        self._heard_s, self._silent, self._said_serving = None, False, False
        self._note(now_s)

    def look(self, now_s: float) -> bool:
        """Time passed. Returns whether the manager has become silent.

        When this process itself stood still, what the manager said meanwhile is not read yet: that
        time does not count.
        """
        paused_s, self._looked_s = now_s - self._looked_s, now_s
        if self._heard_s is None or self._silent:
            return False
        if paused_s > OWN_PAUSE_S:
            self._heard_s += paused_s
        silent_s = now_s - self._heard_s
        if silent_s <= self._silence_s:
            return False
        self._silent = True
        log.warning("manager silent", silent_s=round(silent_s, 3))
        self._note(now_s)
        return True

    def _note(self, now_s: float) -> None:
        if self.serves:
            self._outage_since_s = None
        elif self._outage_since_s is None:
            self._outage_since_s = now_s
