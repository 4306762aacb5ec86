"""Random histories of a `World`: requests, plans in flight, faults.

Used by `test_state_machine.py` as it is, by `test_mutants.py` with bugs planted, and by `soak.py`
for long.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.cachesvc.builders import describe, submission
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.machine_faults import PICKS, FaultRules, attached, someone_is_live
from tests.cachesvc.troubled_world import TroubledWorld
from tests.cachesvc.truth import truth_of
from tests.cachesvc.wire import RequestKey
from tests.cachesvc.wishes import PROMPTS, SALTS, VOCAB_SIZE, WISHES, Wish

MAX_SEQ_LEN = 20


class ManagerMachine(FaultRules):
    """One manager, one runner at a time, two sessions."""

    runner_type = FakeRunner

    @initialize(
        num_rows=st.integers(2, 4),
        num_pages=st.integers(2, 10),
        page_size=st.sampled_from((1, 2, 4)),
        budget=st.sampled_from((1, 3, 64)),
        credits=st.integers(1, 3),
        share_stride_tokens=st.sampled_from((1, 4)),
        max_waiting=st.sampled_from((3, 100, 100)),
        long_prefill_tokens=st.sampled_from((None, 2, 5)),
        max_long_prefills=st.integers(1, 2),
    )
    def start(
        self,
        num_rows: int,
        num_pages: int,
        page_size: int,
        budget: int,
        credits: int,
        **limits: int | None,
    ) -> None:
        description = describe(
            num_rows=num_rows,
            num_pages=num_pages,
            page_size=page_size,
            vocab_size=VOCAB_SIZE,
            max_seq_len=MAX_SEQ_LEN,
        )
        self.world = TroubledWorld(
            description,
            budget=budget,
            credits=credits,
            runner_type=self.runner_type,
            aging_s=4.0,
            **limits,
        )
        self.num_seeds = self.num_faults = 0

    # Sessions

    @rule(wishes=st.lists(WISHES, min_size=1, max_size=3))
    def submit(self, wishes: list[Wish]) -> None:
        for wish in wishes:
            self._submit(wish)

    @rule(wish=WISHES, count=st.integers(2, 3))
    def submit_the_same(self, wish: Wish, count: int) -> None:
        """Equal prompts at once, so that none finds the other's pages."""
        for _ in range(count):
            self._submit(wish)

    def _submit(self, wish: Wish) -> None:
        seed = first_key = self._next_seed()
        most = self.world.description.pool_tokens - 1
        prompt = wish.prompt[: None if wish.may_exceed_pool else most]
        for choice in range(wish.num_choices):
            wanted = submission(
                first_key if choice == 0 else self._next_seed(),
                prompt,
                max_tokens=wish.max_tokens,
                seed=seed,
                stop=wish.stop,
                choice=choice,
                first_choice_key=first_key if choice else None,
                priority=wish.priority,
                cache_salt=wish.cache_salt,
                remaining_s=wish.remaining_s,
                age_s=wish.age_s,
            )
            if wish.resume_len and len(prompt) + (wish.max_tokens or 1) <= MAX_SEQ_LEN:
                answer = truth_of(wanted, self.world.largest).answer
                resumed = np.array(answer[: wish.resume_len], dtype=np.int32)
                wanted = replace(wanted, resume_token_ids=resumed)
            self.world.submit(wish.session_id, wanted)

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

    @precondition(lambda self: any(session_id == 2 for session_id, _ in self.world.live))
    @rule()
    def close_session(self) -> None:
        for request_key in [live for live in self.world.live if live[0] == 2]:
            self.world.leave(request_key)
        self.world.core.close_session(2)

    @precondition(someone_is_live)
    @rule(seconds=st.sampled_from((0.0, 1.0, 5.0)))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    # The stream

    @precondition(attached)
    @rule()
    def send(self) -> None:
        self.world.send()

    @precondition(lambda self: self.world.wire.plans)
    @rule()
    def deliver_plan(self) -> None:
        self.world.deliver_plan()

    @precondition(lambda self: not self.world.wire.runner.idle)
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

    # The cache

    @rule(prompt=PROMPTS, salt=SALTS)
    def only_match(self, prompt: list[int], salt: str) -> None:
        self.world.only_match(prompt, salt)

    @precondition(lambda self: self.world.manager.tree.evictable_count)
    @rule()
    def flush(self) -> None:
        evictable = self.world.manager.tree.evictable_count
        assert self.world.core.flush() == evictable
        assert self.world.manager.tree.evictable_count == 0

    @precondition(lambda self: self.world.num_under_way)
    @rule()
    def check_integrity(self) -> None:
        assert self.world.core.check_integrity() == []

    # What must hold

    @invariant()
    def all_is_well(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.check_end()
