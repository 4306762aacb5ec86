"""A manager and a runner under test, with all that is known of what they should do."""

from __future__ import annotations

from typing import Any

from cachesvc.core import Core
from cachesvc.integrity import check_integrity
from cachesvc.limits import Limits
from cachesvc.request import FinishCause, ReqState, Submission
from servicekit.errors import InvalidArgument
from servicekit.plan import Plan, Refusal, RunnerDescription
from tests.cachesvc.builders import locs_of
from tests.cachesvc.damage import damaged
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.truth import Truth, truth_of
from tests.cachesvc.wire import RequestKey, Wire


class World:
    """Moves messages one at a time and checks each; `check` holds between any two moves."""

    def __init__(
        self,
        description: RunnerDescription,
        *,
        budget: int,
        credits: int,
        runner_type: type[FakeRunner] = FakeRunner,
        **limits: Any,
    ) -> None:
        self.description, self.budget, self.credits = description, budget, credits
        self.limits = Limits(
            step_budget_tokens=budget,
            credits=credits,
            **{"long_prefill_tokens": 1000, "share_stride_tokens": 1, **limits},
        )
        self.runner_type = runner_type
        self.num_boots = 1
        self.wire = Wire(Core(self.limits), runner_type(description, "boot-1"))
        self.truths: dict[int, Truth] = {}  # by seed, which no two requests share
        self.seeds: dict[RequestKey, int] = {}
        self.live: list[RequestKey] = []  # by arrival
        self.left: dict[RequestKey, int] = {}  # stopped or cancelled: tokens heard until then
        self.failed: set[RequestKey] = set()
        self.planted: list[Plan] = []
        self.row_keys: dict[int, dict[int, RequestKey]] = {}  # by plan_id, by table_idx
        self.reset_due = False
        self.nobody_is_passed_over = True  # and nobody comes with a higher priority
        self.attach()

    @property
    def core(self) -> Core:
        return self.wire.core

    @property
    def is_attached(self) -> bool:
        return self.core.stream.attached

    @property
    def num_under_way(self) -> int:
        """Plans sent whose result the manager has not read."""
        return len(self.core.stream._sent)

    # Sessions

    def submit(self, session_id: int, wanted: Submission) -> None:
        """Submit it; it is refused exactly when it can never fit."""
        prompt_len = len(wanted.prompt_ids)
        fits = (
            prompt_len + (wanted.max_tokens or 1) <= self.description.max_seq_len
            and prompt_len + 1 <= self.description.pool_tokens
        )
        try:
            self.core.submit(session_id, wanted)
        except InvalidArgument:
            assert not fits
            return
        assert fits
        self.seeds[session_id, wanted.key] = wanted.sampling.seed
        self.truths[wanted.sampling.seed] = truth_of(wanted, self.description)
        self.live.append((session_id, wanted.key))

    def leave(self, request_key: RequestKey) -> None:
        """Its session is about to stop or cancel it: from now on it hears nothing."""
        self.live.remove(request_key)
        self.left[request_key] = len(self.wire.heard.tokens[request_key])

    # The stream

    def attach(self) -> None:
        stream, runner = self.core.stream, self.wire.runner
        while not runner.idle:
            self.execute()
        if runner.boot_id != stream.boot_id or runner.last_manager_id not in (
            "",
            stream.manager_id,
        ):
            self.reset_due = True
        self.wire.attach()
        self._note_ends()

    def boot_another_runner(self) -> None:
        self.wire.cut()
        self.num_boots += 1
        self.wire.runner = self.runner_type(self.description, f"boot-{self.num_boots}")

    def send(self) -> bool:
        """Whether there was a plan to send."""
        decoding = int(self.core.scheduler.manager.rows.has_sampled.sum())
        plan = self.wire.send()
        self._note_ends()
        if plan is None:
            assert not self.reset_due or self.num_under_way >= self.credits
            return False
        assert plan.reset_rows == self.reset_due, "rows are reset when they must be, then only"
        self.reset_due = False
        rows = self.core.scheduler.manager.rows
        self.row_keys[plan.plan_id] = {
            idx: (req.session_id, req.key) for idx, req in enumerate(rows.req) if req is not None
        }
        assert len(plan.literal_ids) <= max(self.budget, decoding + 1)
        assert self.num_under_way <= self.credits
        return True

    def damage_last_plan(self, kind: str) -> None:
        """The plan sent last arrives with one thing wrong."""
        plan = self.wire.plans.pop()
        arriving = damaged(plan, kind, self.description)
        self.wire.plans.append(arriving)
        if arriving is not plan:
            self.planted.append(arriving)

    def deliver_plan(self) -> None:
        plan, runner = self.wire.plans[0], self.wire.runner
        num_refusals, last_plan_id = len(runner.refusals), runner.books.last_plan_id
        self.wire.deliver_plan()
        if any(plan is bad for bad in self.planted):
            assert runner.books.last_plan_id == last_plan_id, "a planted plan was accepted"
        else:
            assert len(runner.refusals) == num_refusals, runner.refusals[-1]

    def execute(self) -> None:
        """Execute a plan; then every row of the runner holds its own request's sequence."""
        self.wire.execute()
        memory = self.wire.runner.memory
        for idx, row in memory.rows.items():
            truth = self.truths[row.opened.seed]
            assert row.opened.prompt_len == truth.prompt_len
            assert memory.past_of(idx, row.length)[0] == truth.token_ids[: row.length]

    def deliver_answer(self) -> None:
        answer = self.wire.answers[0]
        if isinstance(answer, Refusal):
            self.reset_due = True
            held = self.row_keys[answer.plan_id]
            named = {held[idx] for idx in answer.named_rows if idx in held}
            self.failed |= {request_key for request_key in named if request_key in self.live}
        self.wire.deliver_answer()
        self._note_ends()

    def round(self) -> bool:
        """Use the credits up, move one plan and one answer. Returns whether anything moved."""
        moved = False
        while self.send():
            moved = True
        moved = moved or bool(self.wire.plans or self.wire.answers or not self.wire.runner.idle)
        if self.wire.plans:
            self.deliver_plan()
        self.execute()
        if self.wire.answers:
            self.deliver_answer()
        return moved

    def _note_ends(self) -> None:
        for request_key in self.wire.heard.finished:
            if request_key in self.live:
                self.live.remove(request_key)

    # What must hold

    def check(self) -> None:
        self._every_token_is_the_undisturbed_one()
        self._who_came_first_runs_first()
        self._both_ends_hold_the_same_table_when_nothing_is_under_way()
        check_integrity(self.core.scheduler.manager)
        assert len(self.core.live) == len(self.live)

    def check_end(self) -> None:
        """Left alone, everything comes to its end and every page comes back."""
        if not self.is_attached:
            self.attach()
        for _ in range(3000):
            if not self.round():
                break
        self.check()
        manager = self.core.scheduler.manager
        assert not self.live
        assert manager.available_count == self.description.num_pages
        assert manager.rows.unused_count == self.description.num_rows
        assert self.wire.runner.memory.rows == {}

    def _every_token_is_the_undisturbed_one(self) -> None:
        heard = self.wire.heard
        for request_key, tokens in heard.tokens.items():
            truth = self.truths[self.seeds[request_key]]
            assert tokens == truth.answer[: len(tokens)]
            if request_key in self.left:
                assert len(tokens) == self.left[request_key], "a token after stop or cancel"
        for request_key, ended in heard.finished.items():
            truth = self.truths[self.seeds[request_key]]
            assert request_key not in self.left
            assert (ended.cause is FinishCause.FAILED) == (request_key in self.failed)
            if ended.cause is not FinishCause.FAILED:
                assert (heard.tokens[request_key], ended.cause) == (truth.answer, truth.cause)

    def _who_came_first_runs_first(self) -> None:
        reqs = list(self.core.scheduler.requests())
        waiting = [req for req in reqs if req.state is ReqState.WAITING]
        running = [req for req in reqs if req.state is ReqState.RUNNING]
        for one_list in (waiting, running):
            assert one_list == sorted(one_list, key=lambda req: req.rank)
        if waiting and running and self.nobody_is_passed_over:
            assert running[-1].rank < waiting[0].rank, (running[-1], waiting[0])

    def _both_ends_hold_the_same_table_when_nothing_is_under_way(self) -> None:
        wire = self.wire
        if not self.is_attached or self.reset_due or wire.plans or wire.answers:
            return
        if self.num_under_way or not wire.runner.idle:
            return
        manager = self.core.scheduler.manager
        for idx, row in wire.runner.memory.rows.items():
            assert list(row.table.values()) == locs_of(manager, idx)
            assert row.length == manager.rows.cached_len[idx]
