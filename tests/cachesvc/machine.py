"""Random histories of a `World`: requests, plans in flight, faults.

Used by `test_state_machine.py` as it is, and by `test_mutants.py` with bugs planted.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cachesvc.core import Core
from cachesvc.limits import Limits
from tests.cachesvc.builders import describe, submission
from tests.cachesvc.damage import KINDS
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.truth import truth_of
from tests.cachesvc.wire import RequestKey, Wire
from tests.cachesvc.world import World

VOCAB_SIZE = 5
MAX_SEQ_LEN = 18
MAX_FAULTS = 5  # a history that is all faults gets nowhere

TOKEN_IDS = st.integers(0, VOCAB_SIZE - 1)
PROMPTS = st.lists(TOKEN_IDS, min_size=1, max_size=12)
PICKS = st.integers(0, 30)
FEW = st.integers(0, 3)


class Wish(NamedTuple):
    """A request, as a history draws it."""

    session_id: int
    prompt: list[int]
    max_tokens: int | None
    stop: list[int]


WISHES = st.builds(
    Wish,
    session_id=st.integers(1, 2),
    prompt=PROMPTS,
    max_tokens=st.none() | st.integers(1, 8),
    stop=st.lists(TOKEN_IDS, max_size=1),
)


def attached(machine: ManagerMachine) -> bool:
    return machine.world.is_attached


def detached(machine: ManagerMachine) -> bool:
    return not machine.world.is_attached


def faults_left(machine: ManagerMachine) -> bool:
    return machine.num_faults < MAX_FAULTS


def someone_is_live(machine: ManagerMachine) -> bool:
    return bool(machine.world.live)


class ManagerMachine(RuleBasedStateMachine):
    """One manager, one runner at a time, two sessions."""

    runner_type = FakeRunner
    world: World

    @initialize(
        num_rows=st.integers(2, 3),
        num_pages=st.integers(2, 10),
        page_size=st.sampled_from((1, 2, 4)),
        budget=st.sampled_from((1, 3, 64)),
        credits=st.integers(1, 3),
    )
    def start(
        self, num_rows: int, num_pages: int, page_size: int, budget: int, credits: int
    ) -> None:
        description = describe(
            num_rows=num_rows,
            num_pages=num_pages,
            page_size=page_size,
            vocab_size=VOCAB_SIZE,
            max_seq_len=MAX_SEQ_LEN,
        )
        self.world = World(
            description, budget=budget, credits=credits, runner_type=self.runner_type
        )
        self.num_seeds = self.num_faults = 0

    def _next_seed(self) -> int:
        self.num_seeds += 1
        return self.num_seeds

    # Sessions

    @rule(wishes=st.lists(WISHES, min_size=1, max_size=3))
    def submit(self, wishes: list[Wish]) -> None:
        for session_id, prompt, max_tokens, stop in wishes:
            key = self._next_seed()
            wanted = submission(key, prompt, max_tokens=max_tokens, stop=stop)
            self.world.submit(session_id, wanted)

    @precondition(someone_is_live)
    @rule(pick=PICKS)
    def stop(self, pick: int) -> None:
        self.world.core.stop(*self._leave(pick))

    @precondition(someone_is_live)
    @rule(pick=PICKS)
    def cancel(self, pick: int) -> None:
        request_key = self._leave(pick)
        self.world.core.cancel(*request_key)
        self.world.core.cancel(*request_key)  # a key that ended is ignored

    def _leave(self, pick: int) -> RequestKey:
        request_key = self.world.live[pick % len(self.world.live)]
        self.world.leave(request_key)
        return request_key

    @rule()
    def close_session(self) -> None:
        for request_key in [live for live in self.world.live if live[0] == 2]:
            self.world.leave(request_key)
        self.world.core.close_session(2)

    # The stream

    @precondition(attached)
    @rule()
    def send(self) -> None:
        self.world.send()

    @precondition(lambda self: self.world.wire.plans)
    @rule()
    def deliver_plan(self) -> None:
        self.world.deliver_plan()

    @rule()
    def execute(self) -> None:
        self.world.execute()

    @precondition(lambda self: self.world.wire.answers)
    @rule()
    def deliver_answer(self) -> None:
        self.world.deliver_answer()

    @precondition(attached)
    @rule(num_rounds=st.integers(1, 8))
    def flow(self, num_rounds: int) -> None:
        """The pipeline in steady motion."""
        for _ in range(num_rounds):
            self.world.round()

    @precondition(lambda self: attached(self) and someone_is_live(self))
    @rule(num_rounds=st.integers(4, 16))
    def flow_on(self, num_rounds: int) -> None:
        self.flow(num_rounds)

    # Faults

    @precondition(lambda self: attached(self) and faults_left(self))
    @rule()
    def drop_stream(self) -> None:
        self.num_faults += 1
        self.world.wire.cut()

    @precondition(lambda self: attached(self) and faults_left(self))
    @rule(num_read=FEW, num_executed=FEW, num_heard=FEW)
    def drop_stream_in_motion(self, num_read: int, num_executed: int, num_heard: int) -> None:
        """With credits used up, and some of what is under way at each of its stations."""
        wire = self.world.wire
        while self.world.send():
            pass
        for nth in range(min(num_read, len(wire.plans))):
            self.world.deliver_plan()
            if nth < num_executed:
                self.world.execute()
        for _ in range(min(num_heard, len(wire.answers))):
            self.world.deliver_answer()
        self.drop_stream()
        self.world.attach()

    @precondition(detached)
    @rule()
    def attach_in_vain(self) -> None:
        """The runner answers, the answer is lost."""
        self.world.wire.runner.attach(self.world.core.attach_request())

    @precondition(detached)
    @rule()
    def attach(self) -> None:
        self.world.attach()

    @precondition(faults_left)
    @rule()
    def boot_another_runner(self) -> None:
        self.num_faults += 1
        self.world.boot_another_runner()

    @precondition(detached)
    @rule(token_id=TOKEN_IDS, num_steps=FEW, reads_last=st.booleans())
    def let_a_stranger_drive(self, token_id: int, num_steps: int, reads_last: bool) -> None:
        """Another manager attaches to our runner, runs a request of its own, and dies."""
        stranger = Wire(Core(Limits(step_budget_tokens=3, credits=2)), self.world.wire.runner)
        stranger.attach()
        wanted = submission(1, [token_id], seed=self._next_seed())
        truth = truth_of(wanted, self.world.description)
        self.world.truths[wanted.sampling.seed] = truth
        stranger.core.submit(1, wanted)
        for _ in range(num_steps):
            stranger.step()
        if not reads_last and stranger.send() is not None:
            stranger.deliver_plan()
            stranger.execute()
        heard = stranger.heard.tokens[1, 1]
        assert heard == truth.answer[: len(heard)]
        stranger.cut()

    @precondition(attached)
    @rule(kind=st.sampled_from(KINDS), num_read=FEW)
    def plant_a_bad_plan(self, kind: str, num_read: int) -> None:
        """The last of the plans under way is damaged; the runner reads them before it executes."""
        while self.world.send():
            pass
        if self.world.wire.plans:
            self.world.damage_last_plan(kind)
        for _ in range(min(num_read, len(self.world.wire.plans))):
            self.world.deliver_plan()

    # What must hold

    @invariant()
    def all_is_well(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.check_end()
