"""What a recorded plan stream says a runner executed: the plans that have a result, in order.

Over several attaches it stays one sequence that a fresh runner can execute. A plan whose result was
recorded was executed, whatever stream it came on. A refused plan never was, nor any sent before its
refusal came back; a plan without a result may or may not have been, and one that the runner failed
at has none: neither is part of it. After a refusal, a runner's restart or another manager, the next
plan resets the rows, and does so again when the sequence is executed elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pagewire.v1 import runner_pb2

from servicekit.errors import SetupError
from servicekit.plan import Attached, Int32Array, Plan, RunnerDescription
from servicekit.plan_codec import decode_attached, decode_plan
from servicekit.recording import Record, Recording, RecordingCutError

COMPARED = ("model_fingerprint", "page_size", "num_pages", "num_rows", "max_seq_len", "vocab_size")


class ExecutedPlan(NamedTuple):
    """A recorded plan and what came of it."""

    offset: int  # of the plan's record
    plan_id: int  # as recorded; restarts with the runner
    sampled_ids: Int32Array
    table_digest: int | None  # None: none was asked for


@dataclass(frozen=True, slots=True)
class PlanHistory:
    """What one recording tells. Plans themselves stay in the file until they are read."""

    path: Path
    plans: list[ExecutedPlan]  # at least one
    description: RunnerDescription  # of the runner that executed them
    num_recorded: int  # plans
    num_refused: int  # plans that a refusal named
    num_attaches: int
    cut: str  # where the file is cut and what is whole; "": it is not

    @property
    def num_left_out(self) -> int:
        """Plans that were refused, or whose result is not recorded."""
        return self.num_recorded - len(self.plans)

    def read_plans(self) -> Iterator[tuple[Plan, ExecutedPlan]]:
        """Each executed plan as it was sent, in order. Errors: SetupError."""
        with Recording(self.path) as recording:
            for executed in self.plans:
                yield decode_plan(recording.plan_at(executed.offset)), executed


def read_history(path: Path, *, allow_cut: bool) -> PlanHistory:
    """What the recording at `path` tells; with `allow_cut`, what the whole records before a cut do.

    Errors: SetupError when it is no recording, is cut, contradicts itself, or holds no plan with a
    result.
    """
    reading, cut = _Reading(path), ""
    with Recording(path) as recording:
        try:
            for record in recording.records():
                reading.take(record)
        except RecordingCutError as error:
            whole = f"{reading.num_recorded} plans before it are whole"
            cut = f"the record at byte {error.offset} {error.why}; {whole}"
            if not allow_cut:
                raise SetupError(f"{path}: {cut}: --allow-cut replays those") from error
    return reading.history(cut)


def mismatch(recorded: RunnerDescription, found: RunnerDescription) -> str:
    """Where two runners differ in what a plan relies on, by name, with both values; "": nowhere."""
    values = [(name, getattr(recorded, name), getattr(found, name)) for name in COMPARED]
    return ", ".join(f"{name} {was} and {now}" for name, was, now in values if was != now)


class _Sent(NamedTuple):
    offset: int
    plan_id: int
    manager_id: str


class _Reading:
    """Matches results to plans, record by record."""

    def __init__(self, path: Path) -> None:
        self.num_recorded = 0
        self._path = path
        self._plans: list[ExecutedPlan] = []
        self._num_refused = 0
        self._num_attaches = 0
        self._description: RunnerDescription | None = None  # of the runner that executed them
        self._attached: Attached | None = None  # the last one
        self._sent: deque[_Sent] = deque()  # without a result so far

    def history(self, cut: str) -> PlanHistory:
        """All that was taken. Errors: SetupError when no plan has a result."""
        if self._description is None:
            raise SetupError(
                f"{self._path} holds no plan with a result: there is nothing to replay"
            )
        return PlanHistory(
            self._path,
            self._plans,
            self._description,
            self.num_recorded,
            self._num_refused,
            self._num_attaches,
            cut,
        )

    def take(self, record: Record) -> None:
        """Errors: SetupError for a record that contradicts those before it."""
        message = record.message
        kind = message.WhichOneof("message")
        if kind == "attached":
            self._attach(decode_attached(message.attached))
        elif self._attached is None:
            raise self._contradiction(record, "comes before a runner attached")
        elif kind == "plan":
            plan = message.plan
            self._sent.append(_Sent(record.offset, plan.plan_id, plan.manager_id))
            self.num_recorded += 1
        elif kind == "result":
            self._answer(record, message.result, self._attached)
        elif kind == "failed":
            self._sent.clear()  # the runner ends
        else:
            self._sent.clear()  # the runner drops what came after a refused plan
            self._num_refused += 1

    def _attach(self, attached: Attached) -> None:
        before, self._attached = self._attached, attached
        self._num_attaches += 1
        resumed = (
            before is not None
            and before.boot_id == attached.boot_id
            and self._sent
            and attached.last_manager_id in ("", self._sent[0].manager_id)
        )
        if not resumed:
            self._sent.clear()

    def _answer(self, record: Record, result: runner_pb2.Result, attached: Attached) -> None:
        if result.plan_id not in (sent.plan_id for sent in self._sent):
            return  # of another manager, or sent again after an attach
        sent = self._sent.popleft()
        if sent.plan_id != result.plan_id:
            raise self._contradiction(
                record, f"answers plan {result.plan_id} before plan {sent.plan_id}"
            )
        if self._description is None:
            self._description = attached.description
        elif differs := mismatch(self._description, attached.description):
            raise self._contradiction(
                record, f"is of another runner than the first plans: {differs}"
            )
        self._plans.append(
            ExecutedPlan(
                offset=sent.offset,
                plan_id=result.plan_id,
                sampled_ids=np.array(result.sampled_ids, dtype=np.int32),
                table_digest=result.table_digest if result.HasField("table_digest") else None,
            )
        )

    def _contradiction(self, record: Record, what: str) -> SetupError:
        return SetupError(
            f"{self._path}: the record at byte {record.offset} {what}: it cannot be replayed"
        )
