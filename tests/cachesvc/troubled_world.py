"""A `World` in which things go wrong: other runners and managers, bad plans, broken books."""

from __future__ import annotations

from dataclasses import replace

from cachesvc.core import Core
from cachesvc.limits import Limits
from tests.cachesvc.broken_books import Damage, requests_that_touch_the_fault
from tests.cachesvc.builders import submission
from tests.cachesvc.damage import damaged
from tests.cachesvc.truth import truth_of
from tests.cachesvc.wire import RequestKey, Wire
from tests.cachesvc.world import World


class TroubledWorld(World):
    """Says of each fault what it may change, and checks that it changes no more."""

    # At the other end

    def boot_another_runner(self, page_size: int) -> None:
        """With pages of another size, and as many as make no larger pool."""
        self.wire.cut()
        self.num_boots += 1
        num_pages = self.largest.pool_tokens // page_size
        description = replace(self.largest, page_size=page_size, num_pages=num_pages)
        if not num_pages or page_size == self.description.page_size:
            description = self.description
        self.wire.runner = self.runner_type(description, f"boot-{self.num_boots}")

    def let_a_stranger_drive(
        self, token_id: int, seed: int, num_steps: int, *, reads_last: bool
    ) -> None:
        """Another manager attaches to our runner, runs a request of its own, and dies."""
        stranger = Wire(Core(Limits(step_budget_tokens=3, credits=2)), self.wire.runner)
        stranger.attach()
        wanted = submission(1, [token_id], seed=seed)
        self.truths[seed, 0] = truth = truth_of(wanted, self.largest)
        stranger.core.submit(1, wanted)
        for _ in range(num_steps):
            stranger.step()
        if not reads_last and stranger.send() is not None:
            stranger.deliver_plan()
            stranger.execute()
        heard = stranger.heard.tokens[1, 1]
        assert heard == truth.answer[: len(heard)]
        stranger.cut()

    def damage_last_plan(self, kind: str) -> None:
        """The plan sent last arrives with one thing wrong."""
        plan = self.wire.plans.pop()
        arriving = damaged(plan, kind, self.description)
        self.wire.plans.append(arriving)
        if arriving is not plan:
            self.planted.append(arriving)

    # Books that do not add up

    def damage_and_recount(self, damage: Damage) -> None:
        """The full check finds it. Requests that touch a page claimed twice fail, no others."""
        if not self.core.damage(damage):
            return
        self.failed |= self._touched()
        assert self.core.check_integrity() != []
        self._hear()
        self._shrink()

    def damage_and_send(self, damage: Damage) -> None:
        """The next plan finds it, by the counters or because it cannot be made; rows start over.

        It may give out a page that is another's first, so that requests fail which had no part; or
        end a request that is alone, when a page has leaked.
        """
        if not self.core.stream.can_send or not self.core.damage(damage):
            return
        touched, before = self._touched(), set(self.wire.heard.finished)
        self.reset_due = True
        self.failed |= set(self.live)  # for the time being
        self._shrink(self.description.page_size)
        self.send()
        ended = set(self.wire.heard.finished) - before
        self.failed -= set(self.live) | {key for key in ended if not self._has_failed(key)}
        assert touched <= ended, "who touched the fault is still there"
        self._shrink()

    def _has_failed(self, request_key: RequestKey) -> bool:
        return self.wire.heard.finished[request_key].failure is not None

    def _touched(self) -> set[RequestKey]:
        reqs = requests_that_touch_the_fault(self.manager)
        return {(req.session_id, req.key) for req in reqs} & set(self.live)

    def _shrink(self, leaked_tokens: int = 0) -> None:
        self.least_tokens = min(self.least_tokens, self.manager.usable_tokens - leaked_tokens)
