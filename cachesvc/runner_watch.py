"""Whether the attached runner answers: a hung one is told from a slow one by its answers to plans,
not by its process or its stream being there.
"""

from __future__ import annotations

import structlog

from cachesvc.plan_stream import PlanStream

log = structlog.get_logger()

LONGEST_TICK_S = 1.0  # a clock that jumped says that we stood still, not the runner


class RunnerWatch:
    """`silent` once plans are due for longer than they may be; the next answer ends that.

    An idle runner owes nothing: that one hangs shows with the next plan, or by the stream's
    keepalive.
    """

    def __init__(self, stream: PlanStream) -> None:
        self.silent = False
        self._stream = stream
        self._due_s = 0.0  # since the last answer, as ticks tell
        self._ticked_s: float | None = None

    def tick(self, now_s: float) -> None:
        """Time passed."""
        passed_s = 0.0 if self._ticked_s is None else now_s - self._ticked_s
        self._ticked_s = now_s
        if not self._stream.attached or self._stream.all_answered:
            self._due_s = 0.0
            return
        self._due_s += min(passed_s, LONGEST_TICK_S)
        if not self.silent and self._due_s > self._stream.allowed_silence_s:
            self.silent = True
            log.warning(
                "runner silent",
                plans_in_flight=self._stream.under_way,
                silent_s=round(self._due_s, 1),
            )

    def answered(self) -> None:
        """The runner answered a plan."""
        if self.silent:
            log.info(
                "runner answers again",
                plans_in_flight=self._stream.under_way,
                silent_s=round(self._due_s, 1),
            )
        self.forget()

    def forget(self) -> None:
        """A stream began or ended: nothing is due on it so far."""
        self.silent = False
        self._due_s = 0.0
