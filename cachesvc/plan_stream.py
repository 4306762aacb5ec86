"""The manager's end of the plan stream: numbers, credits, what is sent again. The rules are those
of `runner.proto`.
"""

from __future__ import annotations

import secrets
from collections import deque
from enum import Enum
from typing import NamedTuple

import numpy as np

from cachesvc.credits import Credits
from cachesvc.patience import Patience
from cachesvc.request import Req
from cachesvc.step import Step, StepRecord
from servicekit.plan import PROTOCOL_VERSION, Attach, Attached, Failed, Plan, Refusal, Result


class ProtocolViolationError(Exception):
    """The runner sent what the protocol rules out; the stream is dropped and attached anew."""


class DigestMismatchError(ProtocolViolationError):
    """The runner's page table is not what our plans made of it: none of its pages is trusted."""


class Standing(Enum):
    """How a runner that attached stands to the rows and pages of this manager."""

    RESUMED = "resumed"  # same life, our plans: everything holds
    STARTED_OVER = "started_over"  # no row or page of ours is there


class _SentPlan(NamedTuple):
    plan: Plan
    record: StepRecord
    table_digest: int | None  # of the page table after it, where it is compared

    @property
    def tokens(self) -> int:
        """That it computes, at most one too many a row that prefills."""
        return len(self.plan.step_rows) + len(self.plan.literal_ids)

    @property
    def stepped(self) -> list[Req | None]:
        """The requests of the rows that compute."""
        return [self.record.row_reqs[idx] for idx in self.plan.step_rows.tolist()]


class PlanStream:
    """Owns plan ids and the plans without a result. Knows nothing of what requests or pages are."""

    def __init__(
        self, credits: int | None, *, want_digests: bool = False, runner_silence_s: float = 10.0
    ) -> None:
        self.manager_id = secrets.token_hex(8)
        self.former_manager_id = ""  # whose plans the runner executed before ours; "": none
        self.boot_id = ""
        self.attached = False
        self.last_result_plan_id = 0
        self.refusals_in_a_row = 0
        self._credits = Credits(credits)
        self._patience = Patience(runner_silence_s)
        self._want_digests = want_digests
        self._next_plan_id = 1
        self._must_reset_rows = True
        self.former_last_executed = 0  # results up to it are of no life of ours
        self._digest_due = False
        self._sent: deque[_SentPlan] = deque()

    @property
    def last_plan_id(self) -> int:
        return self._next_plan_id - 1

    @property
    def can_send(self) -> bool:
        return self.attached and len(self._sent) < self._credits.count

    @property
    def under_way(self) -> int:
        """Plans sent that have no result."""
        return len(self._sent)

    @property
    def prefill_tokens_under_way(self) -> int:
        """Prompt tokens in those plans."""
        return sum(len(sent.plan.literal_ids) for sent in self._sent)

    @property
    def allowed_silence_s(self) -> float:
        """How long the runner may take over all of them before it answers any."""
        return self._patience.allowed_s(sum(sent.tokens for sent in self._sent))

    def stepped_under_way(self, failed: Failed | None) -> list[Req]:
        """The live requests in plans without a result, each once, in the order of the plans; where
        the runner said at which plans it `failed`, in those.
        """
        blamed = [
            sent
            for sent in self._sent
            if failed is None or failed.plan_id <= sent.plan.plan_id <= failed.last_plan_id
        ]
        stepped = dict.fromkeys(req for sent in blamed for req in sent.stepped)
        return [req for req in stepped if req is not None and not req.has_ended]

    @property
    def all_answered(self) -> bool:
        """Every plan sent has its result."""
        return not self._sent

    @property
    def must_reset_rows(self) -> bool:
        """The next plan has to be sent even without work."""
        return self._must_reset_rows

    @property
    def due_digest(self) -> int | None:
        """What the next result is to say of the page table; None: it is not compared."""
        return self._sent[0].table_digest if self._sent else None

    def compares_digest(self, step: Step) -> bool:
        """Whether the table is compared after this step: the first with rows on each stream."""
        return self._digest_due and len(step.steps.rows) > 0

    def attach_request(self, model_fingerprint: str) -> Attach:
        return Attach(
            protocol_version=PROTOCOL_VERSION,
            manager_id=self.manager_id,
            boot_id=self.boot_id,
            last_result_plan_id=self.last_result_plan_id if self.boot_id else None,
            model_fingerprint=model_fingerprint,
        )

    def on_attached(self, attached: Attached) -> Standing:
        """Take the runner's answer. After RESUMED, `plans_to_resend` are due; after STARTED_OVER
        nothing sent counts.

        A runner that another manager drove since is started over even in the same life: its rows
        are not ours.
        """
        self.attached = self._digest_due = True
        same_life = attached.boot_id == self.boot_id
        driven = (attached.last_manager_id, attached.last_executed)
        former = (self.former_manager_id, self.former_last_executed)  # no plan of ours came so far
        if same_life and (driven[0] in ("", self.manager_id) or driven == former):
            return Standing.RESUMED
        self.boot_id = attached.boot_id
        self.former_manager_id = attached.last_manager_id
        self.former_last_executed = attached.last_executed
        self._start_over_after(attached.last_executed)
        return Standing.STARTED_OVER

    def plans_to_resend(self, last_executed: int) -> list[Plan]:
        """Plans that the runner never got, unchanged and in order."""
        return [sent.plan for sent in self._sent if sent.plan.plan_id > last_executed]

    def on_lost(self) -> None:
        self.attached = False

    def number(self, step: Step, table_digest: int | None = None) -> Plan:
        """Make a step the next plan, and hold it until its result. `table_digest` is what the
        runner's has to be then, where the step `compares_digest`.
        """
        plan = Plan(
            manager_id=self.manager_id,
            plan_id=self._next_plan_id,
            acked_plan_id=self.last_result_plan_id,
            reset_rows=self._must_reset_rows,
            close_rows=step.close_rows,
            open_rows=step.open_rows,
            write_rows=step.write.rows,
            write_positions=step.write.positions,
            write_locs=step.write.locs,
            step_rows=step.steps.rows.astype(np.int32),
            step_cached_lens=step.steps.cached_lens,
            step_extend_lens=step.steps.extend_lens,
            step_num_literals=step.steps.num_literals,
            step_samples=step.steps.samples,
            literal_ids=step.steps.literal_ids,
            want_digest=self._want_digests or table_digest is not None,
        )
        self._must_reset_rows = False
        self._next_plan_id += 1
        if table_digest is not None:
            self._digest_due = False
        self._sent.append(_SentPlan(plan, step.record, table_digest))
        return plan

    def on_result(self, result: Result) -> StepRecord | None:
        """The step that `result` answers; None for a plan of a former life, sent again at attach.

        Errors: ProtocolViolationError unless it is the oldest plan without a result;
        DigestMismatchError, after which whatever attaches starts over.
        """
        if result.plan_id <= self.former_last_executed:
            return None
        if not self._sent or self._sent[0].plan.plan_id != result.plan_id:
            raise ProtocolViolationError(f"result of plan {result.plan_id}, due is {self._due()}")
        sent = self._sent[0]
        if len(result.sampled_ids) != len(sent.record.sampling_rows):
            raise ProtocolViolationError(
                f"plan {result.plan_id} samples {len(sent.record.sampling_rows)} rows, its "
                f"result has {len(result.sampled_ids)}"
            )
        if sent.table_digest not in (None, result.table_digest):
            self.boot_id = ""
            raise DigestMismatchError(
                f"the runner's page table after plan {result.plan_id} is not the manager's"
            )
        self._sent.popleft()
        self._patience.note(sent.tokens, max(result.device_us, result.launch_us))
        if len(sent.plan.step_rows) and not len(sent.plan.literal_ids):
            self._credits.note_decode(result.device_us)
        self.last_result_plan_id = result.plan_id
        self.refusals_in_a_row = 0
        return sent.record

    def on_refusal(self, refusal: Refusal) -> StepRecord:
        """The step that was refused. It and all plans after it never happened; the next plan resets
        the rows.

        Errors: ProtocolViolationError unless the refused plan is the oldest without a result, and
        the one before it was accepted last.
        """
        if not self._sent or self._sent[0].plan.plan_id != refusal.plan_id:
            raise ProtocolViolationError(f"refusal of plan {refusal.plan_id}, due is {self._due()}")
        if refusal.last_accepted_plan_id != refusal.plan_id - 1:
            raise ProtocolViolationError(
                f"plan {refusal.plan_id} is refused, the last accepted one is said to be "
                f"{refusal.last_accepted_plan_id}"
            )
        record = self._sent[0].record
        self.refusals_in_a_row += 1
        self._start_over_after(refusal.last_accepted_plan_id)
        return record

    def start_over(self) -> None:
        """Our own books failed: rows are reset with the next plan, plans on their way run for
        nobody.
        """
        self._must_reset_rows = True

    def _start_over_after(self, last_executed: int) -> None:
        self._sent.clear()
        self._next_plan_id = last_executed + 1
        self.last_result_plan_id = last_executed
        self._must_reset_rows = True

    def _due(self) -> str:
        return f"plan {self._sent[0].plan.plan_id}" if self._sent else "none"
