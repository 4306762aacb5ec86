"""A runner in numpy and dicts: the real refusal rules, and a KV memory that notices a wrong page.

A loc holds (token, digest of everything before it). What a row samples is a pure function of its
seed and choice, the position and all tokens before it: a continuation can be computed without any
manager.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from runnersvc.bookkeeping import Books
from servicekit.plan import (
    Attach,
    Attached,
    Failed,
    Int32Array,
    Plan,
    Refusal,
    Result,
    RowOpen,
    RunnerDescription,
)
from servicekit.table_digest import table_digest

NOTHING = 0  # the digest before the first token


class WrongPage(AssertionError):
    """A row read what it did not write, or wrote where it must not."""


def fold(digest: int, token_id: int) -> int:
    return hash((digest, token_id))


def digest_of(token_ids: Sequence[int]) -> int:
    digest = NOTHING
    for token_id in token_ids:
        digest = fold(digest, token_id)
    return digest


def sampled_token(seed: int, choice: int, position: int, digest: int, vocab_size: int) -> int:
    draw = seed + choice * 1_000_003
    return hash((draw, position, digest, 977)) % vocab_size  # hashes of integers are fixed


def continuation(
    prompt: Sequence[int], seed: int, count: int, vocab_size: int, choice: int = 0
) -> list[int]:
    """The next `count` tokens, as a request alone in the world would get them."""
    token_ids, digest = list(prompt), digest_of(prompt)
    for _ in range(count):
        token_ids.append(sampled_token(seed, choice, len(token_ids), digest, vocab_size))
        digest = fold(digest, token_ids[-1])
    return token_ids[len(prompt) :]


@dataclass
class FakeRow:
    """What the device holds of an open row."""

    opened: RowOpen
    table: dict[int, int] = field(default_factory=dict)  # position -> loc
    length: int = 0
    last_token: int | None = None


class FakeMemory:
    """Executes accepted plans (`runnersvc.executor.ExecutesPlans`)."""

    def __init__(self, runner: RunnerDescription) -> None:
        self._vocab_size = runner.vocab_size
        self.kv: dict[int, tuple[int, int]] = {}  # loc -> (token, digest of all before)
        self.rows: dict[int, FakeRow] = {}

    def execute(self, plan: Plan) -> Int32Array:
        """Errors: WrongPage when a row reads another past, or a loc is stored twice."""
        if plan.reset_rows:
            self.rows.clear()
        for idx in plan.close_rows.tolist():
            del self.rows[idx]
        for opened in plan.open_rows:
            self.rows[opened.table_idx] = FakeRow(opened)
        writes = zip(
            plan.write_rows.tolist(),
            plan.write_positions.tolist(),
            plan.write_locs.tolist(),
            strict=True,
        )
        for idx, position, loc in writes:
            self.rows[idx].table[position] = loc
        return self._compute(plan)

    def past_of(self, idx: int, length: int) -> tuple[list[int], int]:
        """The tokens that a row finds at its first positions, and their digest."""
        row, digest, token_ids = self.rows[idx], NOTHING, []
        for position in range(length):
            token_id, before = self.kv[row.table[position]]
            if before != digest:
                raise WrongPage(f"row {idx} finds another past at position {position}")
            token_ids.append(token_id)
            digest = fold(digest, token_id)
        return token_ids, digest

    def digest(self) -> int:
        """Of the page table as it is now."""
        idxs = np.array(sorted(self.rows), dtype=np.int32)
        lengths = np.array([self.rows[idx].length for idx in idxs.tolist()], dtype=np.int32)
        table = np.zeros((max(self.rows, default=0) + 1, lengths.max(initial=0)), dtype=np.int32)
        for idx, length in zip(idxs.tolist(), lengths.tolist(), strict=True):
            table[idx, :length] = [self.rows[idx].table[at] for at in range(length)]
        return table_digest(table, idxs, lengths)

    def _compute(self, plan: Plan) -> Int32Array:
        steps = list(
            zip(
                plan.step_rows.tolist(),
                plan.step_cached_lens.tolist(),
                plan.step_num_literals.tolist(),
                plan.step_samples.tolist(),
                strict=True,
            )
        )
        literals = iter(plan.literal_ids.tolist())
        digests = [self.past_of(idx, cached_len)[1] for idx, cached_len, _, _ in steps]
        stored: set[int] = set()
        sampled: list[int] = []
        for (idx, cached_len, num_literals, samples), digest in zip(steps, digests, strict=True):
            row = self.rows[idx]
            ids = [next(literals) for _ in range(num_literals)] or [row.last_token]
            for position, token_id in enumerate(ids, start=cached_len):
                assert token_id is not None
                loc = row.table[position]
                if loc in stored:
                    raise WrongPage(f"loc {loc} is stored twice in plan {plan.plan_id}")
                stored.add(loc)
                self.kv[loc] = (token_id, digest)
                digest = fold(digest, token_id)
            row.length = cached_len + len(ids)
            if samples:
                opened = row.opened
                row.last_token = sampled_token(
                    opened.seed, opened.choice, row.length, digest, self._vocab_size
                )
                sampled.append(row.last_token)
        return np.array(sampled, dtype=np.int32)


class FakeRunner:
    """One life of a runner, driven by hand: plans are taken and executed when the test says so.

    It dies of a plan that steps a row of `dies_of`, by seed and choice, and says so in vain when
    nobody listens.
    """

    def __init__(
        self,
        runner: RunnerDescription,
        boot_id: str = "boot-1",
        dies_of: set[tuple[int, int]] | None = None,
    ) -> None:
        self.dies_of = set() if dies_of is None else dies_of
        self.is_dead = False
        self.description = runner
        self.boot_id = boot_id
        self.memory = FakeMemory(runner)
        self.books = Books(runner)
        self.last_executed = 0
        self.last_manager_id = ""
        self.refusals: list[Refusal] = []
        self.executed: list[Plan] = []
        self._queue: deque[Plan | Refusal] = deque()
        self._kept: dict[int, Result] = {}
        self._dropping = False

    def attach(self, attach: Attach) -> tuple[Attached, list[Result]]:
        """Execute what was accepted, then answer with what the manager does not hold."""
        while self._queue:
            self.execute_one()
        self._dropping = False
        is_same = (attach.boot_id, attach.manager_id) == (self.boot_id, self.last_manager_id)
        if is_same and attach.last_result_plan_id is not None:
            self._forget(attach.last_result_plan_id)
        answer = Attached(self.description, self.boot_id, self.last_executed, self.last_manager_id)
        return answer, self._results_to_send()

    def take(self, plan: Plan) -> None:
        """Read a plan of the stream: accept it, refuse it, or drop it after a refusal."""
        starts_over = plan.reset_rows and plan.plan_id == self.books.last_plan_id + 1
        if self._dropping and not starts_over:
            return
        refusal = self.books.accept(plan)
        self._dropping = refusal is not None
        if refusal is None:
            self._forget(plan.acked_plan_id)
            self._queue.append(plan)
        else:
            self.refusals.append(refusal)
            self._put_refusal(refusal)

    def execute_one(self) -> Result | Refusal | Failed | None:
        """The answer to the oldest plan taken, None when there is none."""
        if not self._queue:
            return None
        work = self._queue.popleft()
        if isinstance(work, Refusal):
            return work
        if self._kills(work):
            self.is_dead = True
            self._queue.clear()
            return Failed(work.plan_id, "poison", work.plan_id)
        sampled_ids = self.memory.execute(work)
        digest = self.memory.digest() if work.want_digest else None
        result = Result(work.plan_id, sampled_ids, waited_us=2, device_us=3, table_digest=digest)
        self.last_executed, self.last_manager_id = work.plan_id, work.manager_id
        self.executed.append(work)
        self._kept[work.plan_id] = result
        return result

    def _kills(self, plan: Plan) -> bool:
        opened = {idx: row.opened for idx, row in self.memory.rows.items()}
        opened |= {row.table_idx: row for row in plan.open_rows}
        stepped = [opened[idx] for idx in plan.step_rows.tolist()]
        return any((row.seed, row.choice) in self.dies_of for row in stepped)

    @property
    def idle(self) -> bool:
        return not self._queue

    def _results_to_send(self) -> list[Result]:
        return list(self._kept.values())

    def _put_refusal(self, refusal: Refusal) -> None:
        self._queue.append(refusal)

    def _forget(self, acked_plan_id: int) -> None:
        for plan_id in [kept for kept in self._kept if kept <= acked_plan_id]:
            del self._kept[plan_id]
