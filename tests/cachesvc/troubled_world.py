"""A `World` in which things go wrong: other runners and managers, bad plans, broken books."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cachesvc.core import Core
from cachesvc.ledger import ChangeReason
from cachesvc.limits import Limits
from cachesvc.prefix_node import ID_BYTES
from cachesvc.request import Submission
from servicekit.errors import InvalidArgument
from servicekit.plan import RunnerDescription
from tests.cachesvc import invariants
from tests.cachesvc.broken_books import Damage, requests_that_touch_the_fault
from tests.cachesvc.builders import submission
from tests.cachesvc.damage import damaged
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.memory_journal import MemoryJournal
from tests.cachesvc.recorded_core import RecordedCore
from tests.cachesvc.truth import truth_of
from tests.cachesvc.wire import RequestKey, Wire
from tests.cachesvc.world import World


class TroubledWorld(World):
    """Says of each fault what it may change, and checks that it changes no more."""

    # At the other end

    def boot_another_runner(self, page_size: int) -> None:
        """With pages of another size, and as many as make no larger pool. Nobody is to blame."""
        self.wire.cut()
        self.deaths.by_chance |= set(self.live)
        num_pages = self.largest.pool_tokens // page_size
        description = replace(self.largest, page_size=page_size, num_pages=num_pages)
        if not num_pages or page_size == self.description.page_size:
            description = self.description
        self._boot(description)

    def _boot(self, description: RunnerDescription) -> None:
        self.num_boots += 1
        dies_of = self.wire.runner.dies_of
        self.wire.runner = self.runner_type(description, f"boot-{self.num_boots}", dies_of)

    def execute(self) -> None:
        """A runner may die of it; another one of the same kind comes, at once where one was
        attached. Of two deaths the manager hears all that was said before one.
        """
        super().execute()
        if not self.wire.runner.is_dead:
            return
        was_attached = self.is_attached
        if was_attached and self.num_boots % 2:
            while self.wire.answers:
                self.deliver_answer()
        self.wire.cut()
        self._boot(self.wire.runner.description)
        if was_attached:
            self.attach()

    def submit_poison(self, session_id: int, wanted: Submission) -> None:
        """Whatever runner computes it dies."""
        self.wire.runner.dies_of.add((wanted.sampling.seed, wanted.choice))
        self.submit(session_id, wanted)

    def kill_the_manager(self, *, checks_completeness: bool = True) -> int:
        """Another one takes its place and its journal, attaches, and gets what the sessions still
        wait for, with the tokens that they hold. Returns how many pages it adopted: all that its
        journal can know of.
        """
        former = self.core
        held = cached_sequences(former, self.wire.runner)
        known = former.ready_scheduler().manager.known
        was_written = not known.rewrite_due and not known.take_changes()
        self.wire.cut()
        self.deaths.forget()
        self.core = RecordedCore(self.limits, MemoryJournal(former.journal.written))
        self.wire.core = self.core
        self.attach()
        runner, adopted = self.wire.runner, self.core.totals.adopted_pages
        if adopted:
            assert runner.boot_id == former.stream.boot_id
            invariants.pages_hold_their_prefix(self.manager, runner)
        if (
            checks_completeness
            and was_written
            and runner.last_manager_id == former.stream.manager_id
        ):
            assert held <= cached_sequences(self.core, runner), "a page was not adopted"
        for request_key in list(self.live):
            self._resubmit(request_key)
        return adopted

    def _resubmit(self, request_key: RequestKey) -> None:
        """As its gateway does. It keeps its rank, and no queue is full for it."""
        before = self.wanted[request_key]
        held = [*before.submission.resume_token_ids, *self.wire.heard.tokens[request_key]]
        came_s = before.rank[0] + before.submission.priority * self.limits.aging_s
        remaining_s = None if before.deadline_s is None else before.deadline_s - self.now_s
        wanted = replace(
            before.submission,
            resume_token_ids=np.array(held, dtype=np.int32),
            remaining_s=remaining_s,
            age_s=self.now_s - came_s,
        )
        self.wanted[request_key] = before._replace(rank=(before.rank[0], self.num_arrivals))
        self.num_arrivals += 1
        self.wire.heard.resubmitted.add(request_key)
        try:
            self.core.submit(request_key[0], wanted, self.now_s)
        except InvalidArgument:  # another runner came, too, for which it is too long
            assert request_key in self.failed
            self.failed.remove(request_key)
            self.leave(request_key)
        self._hear()

    def let_a_stranger_drive(
        self, token_id: int, seed: int, num_steps: int, *, reads_last: bool
    ) -> None:
        """Another manager attaches to our runner, runs a request of its own, and dies."""
        self.let_the_runner_finish()
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
        if not self.core.stream.can_send or self._counts_anew or not self.core.damage(damage):
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

    @property
    def _counts_anew(self) -> bool:
        """The next plan closes rows of requests that failed: what the counters say is mended."""
        ended = self.core.ready_scheduler()._ended
        return any(reason is ChangeReason.FAILED for _, reason in ended)

    def _has_failed(self, request_key: RequestKey) -> bool:
        return self.wire.heard.finished[request_key].failure is not None

    def _touched(self) -> set[RequestKey]:
        reqs = requests_that_touch_the_fault(self.manager)
        return {(req.session_id, req.key) for req in reqs} & set(self.live)

    def _shrink(self, leaked_tokens: int = 0) -> None:
        self.least_tokens = min(self.least_tokens, self.manager.usable_tokens - leaked_tokens)


def cached_sequences(core: Core, runner: FakeRunner) -> set[tuple[str, bytes]]:
    """Salt and ids of each cached page of the runner's memory, with all before it."""
    manager = core.ready_scheduler().manager
    if runner.boot_id != core.stream.boot_id or runner.description is not manager.runner:
        return set()
    sequences: set[tuple[str, bytes]] = set()
    pending = [(node, node.salt, b"") for node in manager.tree.nodes() if node.parent is None]
    while pending:
        node, salt, before = pending.pop()
        for nth, loc in enumerate(np.frombuffer(node.locs, dtype=np.int32).tolist(), start=1):
            if manager.filled_by[loc // manager.page_size] > runner.last_executed:
                break
            sequences.add((salt, before + node.ids[: nth * manager.page_size * ID_BYTES]))
        else:
            pending += [
                (child, salt, before + node.ids) for child in (node.children or {}).values()
            ]
    return sequences
