"""A manager and a runner under test, with all that is known of what they should do.

What can go wrong with them is in `troubled_world.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from cachesvc.limits import Limits
from cachesvc.live_requests import LiveRequests
from cachesvc.manager import CacheManager
from cachesvc.request import Req, ReqState, Submission
from servicekit.errors import InvalidArgument, ResourceExhausted
from servicekit.plan import Failed, Plan, Refusal, RunnerDescription
from tests.cachesvc import invariants
from tests.cachesvc.builders import submission
from tests.cachesvc.deaths import Deaths
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.recorded_core import RecordedCore
from tests.cachesvc.truth import Truth, truth_of
from tests.cachesvc.wire import RequestKey, Wire

Draw = tuple[int, int]  # seed and choice: no two requests share both


class Wanted(NamedTuple):
    """What was asked for, and when: its place in the order of arrival, and in that of ranks."""

    submission: Submission
    draw: Draw
    rank: tuple[float, int]
    deadline_s: float | None


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
            step_budget_tokens=budget, credits=credits, **{"share_stride_tokens": 1, **limits}
        )
        self.runner_type = runner_type
        self.num_boots = 1
        self.now_s = 0.0
        self.core = RecordedCore(self.limits)
        self.wire = Wire(self.core, runner_type(description, "boot-1"))
        self.truths: dict[Draw, Truth] = {}
        self.wanted: dict[RequestKey, Wanted] = {}
        self.num_arrivals = 0
        self.live: list[RequestKey] = []  # by arrival
        self.left: dict[RequestKey, int] = {}  # stopped or cancelled: tokens heard until then
        self.failed: set[RequestKey] = set()
        self.deaths = Deaths()
        self.planted: list[Plan] = []
        self.row_keys: dict[int, dict[int, RequestKey]] = {}  # by plan_id, by table_idx
        self.reset_due = False
        self.largest = description  # runners that come later have no larger pool
        self.least_tokens = description.pool_tokens  # that pages were ever left for
        self.attach()

    @property
    def manager(self) -> CacheManager:
        return self.core.ready_scheduler().manager

    @property
    def is_attached(self) -> bool:
        return self.core.stream.attached

    @property
    def num_under_way(self) -> int:
        """Plans sent whose result the manager has not read."""
        return len(self.core.stream._sent)

    def reqs(self, state: ReqState) -> list[Req]:
        """Requests of that state, in the order that the scheduler keeps them in."""
        return [req for req in self.core.ready_scheduler().requests() if req.state is state]

    # Sessions

    def submit(self, session_id: int, wanted: Submission) -> bool:
        """Submit it; it is refused exactly when it can never fit, or when the queue is full."""
        prompt_len = len(wanted.prompt_ids)
        fits = (
            prompt_len + (wanted.max_tokens or 1) <= self.description.max_seq_len
            and prompt_len + 1 <= self.manager.usable_tokens
        )
        num_waiting = len(self.reqs(ReqState.WAITING))
        is_full = not wanted.is_again and num_waiting >= self.limits.max_waiting
        try:
            self.core.submit(session_id, wanted, self.now_s)
        except InvalidArgument:
            assert not fits
            return False
        except ResourceExhausted:
            assert fits
            assert is_full
            return False
        assert fits
        assert not is_full
        request_key, draw = (session_id, wanted.key), (wanted.sampling.seed, wanted.choice)
        remaining_s, came_s = wanted.remaining_s, self.now_s - (wanted.age_s or 0.0)
        self.wanted[request_key] = Wanted(
            wanted,
            draw,
            rank=(came_s - wanted.priority * self.limits.aging_s, self.num_arrivals),
            deadline_s=None if remaining_s is None else self.now_s + remaining_s,
        )
        self.num_arrivals += 1
        self.truths[draw] = truth_of(wanted, self.largest)
        self.live.append(request_key)
        self._hear()  # one that resumes all of its answer has ended
        return True

    def leave(self, request_key: RequestKey) -> None:
        """Its session is about to stop or cancel it: from now on it hears nothing."""
        self.live.remove(request_key)
        self.left[request_key] = len(self.wire.heard.tokens[request_key])

    def pass_time(self, seconds: float) -> None:
        """Exactly those fail that wait past their time."""
        self.now_s += seconds
        for req in self.reqs(ReqState.WAITING):
            deadline_s = self.wanted[req.session_id, req.key].deadline_s
            if deadline_s is not None and deadline_s <= self.now_s:
                self.failed.add((req.session_id, req.key))
        self.core.tick(self.now_s)
        self._hear()

    # The stream

    def attach(self) -> None:
        stream = self.core.stream
        self.let_the_runner_finish()
        runner = self.wire.runner
        driven = (runner.last_manager_id, runner.last_executed)
        is_ours = driven[0] in ("", stream.manager_id)
        is_ours = is_ours or driven == (stream.former_manager_id, stream.former_last_executed)
        if runner.boot_id != stream.boot_id or not is_ours:
            self.reset_due = True
            if stream.boot_id not in ("", runner.boot_id):
                self.deaths.died(self.live, self.wire.heard.tokens)
                self.failed.update(self.deaths.too_many())
            self.deaths.start_over()
        self.deaths.reported = None
        if runner.description is not self.description:
            self._come_to(runner.description)
        self.wire.attach()
        self._hear()
        for request_key in self.deaths.too_many():  # unless a smaller pool ended it first
            if self.wire.heard.finished[request_key].failure is None:
                self.failed.discard(request_key)

    def let_the_runner_finish(self) -> None:
        """It executes what it accepted, whoever listens."""
        while not self.wire.runner.idle:
            self.execute()

    def _come_to(self, description: RunnerDescription) -> None:
        """Requests whose prompts do not fit any more fail."""
        self.description = description
        self.least_tokens = min(self.least_tokens, description.pool_tokens)
        for request_key in self.live:
            prompt_len = len(self.wanted[request_key].submission.prompt_ids)
            if prompt_len + 1 > description.pool_tokens:
                self.failed.add(request_key)

    def send(self) -> bool:
        """Whether there was a plan to send."""
        num_decoding = int(self.manager.rows.has_sampled.sum())
        running, heals = self.reqs(ReqState.RUNNING), self.core.healer.healed_total
        plan = self.wire.send()
        self._hear()
        if plan is None:
            assert not self.reset_due or self.num_under_way >= self.credits
            return False
        assert plan.reset_rows == self.reset_due, "rows are reset when they must be, then only"
        if self.core.healer.healed_total == heals:
            invariants.last_in_rank_goes_first(running)
            invariants.first_in_rank_comes_first(self, running)
            invariants.choices_share_the_prompt(self, running)
            invariants.who_a_runner_may_have_died_of_is_tried_alone(self, running)
        invariants.pages_are_written_whole(self, plan)
        self.reset_due = False
        self.row_keys[plan.plan_id] = {
            idx: (req.session_id, req.key)
            for idx, req in enumerate(self.manager.rows.req)
            if req is not None
        }
        self.deaths.sent(plan, self.row_keys[plan.plan_id])
        assert len(plan.literal_ids) <= max(self.budget, num_decoding + 1)
        assert self.num_under_way <= self.credits
        return True

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
            truth = self.truths[row.opened.seed, row.opened.choice]
            assert row.opened.prompt_len == truth.prompt_len
            assert memory.past_of(idx, row.length)[0] == truth.token_ids[: row.length]

    def send_to_the_device(self) -> None:
        """A plan, to where its answer waits to be read."""
        self.send()
        self.deliver_plan()
        self.execute()

    def deliver_answer(self) -> None:
        answer = self.wire.answers[0]
        if isinstance(answer, Refusal):
            self.reset_due = True
            held = self.row_keys[answer.plan_id]
            named = {held[idx] for idx in answer.named_rows if idx in held}
            self.failed |= {request_key for request_key in named if request_key in self.live}
            self.deaths.start_over()
        elif isinstance(answer, Failed):
            self.deaths.reported = answer
        else:
            self.deaths.answered(answer.plan_id)
        self.wire.deliver_answer()
        self._hear()

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

    def _hear(self) -> None:
        self.wire.heard.take(self.core)
        self.deaths.hear(self.wire.heard.tokens)
        for request_key in self.wire.heard.finished:
            if request_key in self.live:
                self.live.remove(request_key)

    # The cache

    def only_match(self, prompt: list[int], salt: str) -> None:
        """Looking changes nothing, and leaves a token to compute."""
        before = invariants.tree_of(self)
        wanted = submission(1, prompt, cache_salt=salt)
        req = LiveRequests(self.limits.aging_s).begin(
            1, wanted, self.description.max_seq_len, 1, self.now_s
        )
        match = self.manager.find_prefix(req)
        assert match.num_pages * self.description.page_size < len(prompt)
        assert invariants.tree_of(self) == before

    # What must hold

    def check(self) -> None:
        invariants.check(self)

    def check_end(self) -> None:
        """Left alone, everything comes to its end and every page comes back."""
        if not self.is_attached:
            self.attach()
        for _ in range(3000):
            if not self.round():
                break
        self.check()
        assert not self.live
        assert self.manager.tree.locked_count == 0
        assert self.manager.available_count == self.manager.usable_count
        assert self.manager.rows.unused_count == self.description.num_rows
        assert self.wire.runner.memory.rows == {}
        invariants.pages_are_reported_as_they_are(self)
        self.core.replay()
