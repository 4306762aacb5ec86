"""Faults in a random history: lost streams, other runners and managers, bad plans, broken books."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.cachesvc.broken_books import (
    DAMAGES,
    Damage,
    a_page_leaks,
    a_page_of_a_row_is_free_too,
    a_page_of_the_tree_is_free_too,
    the_evictable_counter_is_one_too_high,
)
from tests.cachesvc.builders import submission
from tests.cachesvc.damage import KINDS
from tests.cachesvc.troubled_world import TroubledWorld
from tests.cachesvc.wishes import PROMPTS, TOKEN_IDS

MAX_FAULTS = 5  # a history that is all faults gets nowhere
SEEN_BY_COUNTERS = (
    the_evictable_counter_is_one_too_high,
    a_page_leaks,
    a_page_of_the_tree_is_free_too,
    a_page_of_a_row_is_free_too,
)

PICKS = st.integers(0, 30)
FEW = st.integers(0, 3)


def attached(machine: FaultRules) -> bool:
    return machine.world.is_attached


def detached(machine: FaultRules) -> bool:
    return not machine.world.is_attached


def faults_left(machine: FaultRules) -> bool:
    return machine.num_faults < MAX_FAULTS


def someone_runs_and_faults_left(machine: FaultRules) -> bool:
    return bool(machine.world.manager.rows.open_rows) and faults_left(machine)


def someone_is_live(machine: FaultRules) -> bool:
    return bool(machine.world.live)


class FaultRules(RuleBasedStateMachine):
    """The half of a `ManagerMachine` in which things go wrong."""

    world: TroubledWorld
    num_faults: int
    num_seeds: int

    def _next_seed(self) -> int:
        self.num_seeds += 1
        return self.num_seeds

    def _put_in_motion(self, num_read: int, num_executed: int, num_heard: int) -> None:
        """Credits used up, and some of what is under way at each of its stations."""
        wire = self.world.wire
        while self.world.send():
            pass
        for nth in range(min(num_read, len(wire.plans))):
            self.world.deliver_plan()
            if nth < num_executed:
                self.world.execute()
        for _ in range(min(num_heard, len(wire.answers))):
            self.world.deliver_answer()

    @precondition(lambda self: attached(self) and faults_left(self))
    @rule()
    def drop_stream(self) -> None:
        self.num_faults += 1
        self.world.wire.cut()

    @precondition(lambda self: attached(self) and faults_left(self))
    @rule(num_read=FEW, num_executed=FEW, num_heard=FEW)
    def drop_stream_in_motion(self, num_read: int, num_executed: int, num_heard: int) -> None:
        self._put_in_motion(num_read, num_executed, num_heard)
        self.drop_stream()
        self.world.attach()

    @precondition(detached)
    @rule()
    def attach_in_vain(self) -> None:
        """The runner answers, the answer is lost."""
        self.world.let_the_runner_finish()
        self.world.wire.runner.attach(self.world.core.attach_request())

    @precondition(detached)
    @rule()
    def attach(self) -> None:
        self.world.attach()

    @precondition(faults_left)
    @rule(page_size=st.sampled_from((0, 0, 1, 2, 4)))
    def boot_another_runner(self, page_size: int) -> None:
        self.num_faults += 1
        self.world.boot_another_runner(page_size or self.world.description.page_size)

    @precondition(faults_left)
    @rule()
    def kill_the_manager(self) -> None:
        self.num_faults += 1
        self.world.kill_the_manager()

    @precondition(lambda self: attached(self) and faults_left(self))
    @rule(num_read=FEW, num_executed=FEW, num_heard=FEW)
    def kill_the_manager_in_motion(self, num_read: int, num_executed: int, num_heard: int) -> None:
        self._put_in_motion(num_read, num_executed, num_heard)
        self.kill_the_manager()

    @precondition(lambda self: attached(self) and faults_left(self))
    @rule(prompt=PROMPTS, max_tokens=st.integers(1, 8), priority=st.sampled_from((0, 0, 1)))
    def submit_what_runners_die_of(self, prompt: list[int], max_tokens: int, priority: int) -> None:
        self.num_faults += 1
        seed = self._next_seed()
        wanted = submission(seed, prompt, seed=seed, max_tokens=max_tokens, priority=priority)
        self.world.submit_poison(1, wanted)

    @precondition(detached)
    @rule(token_id=TOKEN_IDS, num_steps=FEW, reads_last=st.booleans())
    def let_a_stranger_drive(self, token_id: int, num_steps: int, reads_last: bool) -> None:
        seed = self._next_seed()
        self.world.let_a_stranger_drive(token_id, seed, num_steps, reads_last=reads_last)

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

    @precondition(someone_runs_and_faults_left)
    @rule(damage=st.sampled_from(DAMAGES))
    def damage_the_books_and_recount(self, damage: Damage) -> None:
        self.num_faults += 1
        self.world.damage_and_recount(damage)

    @precondition(someone_runs_and_faults_left)
    @rule(damage=st.sampled_from(SEEN_BY_COUNTERS))
    def damage_the_books_and_send(self, damage: Damage) -> None:
        self.num_faults += 1
        self.world.damage_and_send(damage)
