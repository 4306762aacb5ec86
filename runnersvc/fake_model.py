"""A model without weights: real rows and a real page table, chosen tokens, chosen times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from runnersvc.executor import AtOnce
from servicekit.arith import table_width
from servicekit.plan import Int32Array, Plan, RunnerDescription

_SEED, _CHOICE, _POSITION = (
    np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
)
_MIX, _HALF = np.uint64(0xD6E8FEB86659FD93), np.uint64(32)


class ChoosesTokens(Protocol):
    """Where the tokens of a fake model come from."""

    def choose(
        self, seeds: NDArray[np.int64], choices: Int32Array, positions: Int32Array
    ) -> Int32Array:
        """The ids that the sampling rows of a plan get, in plan order: arguments and answer [n]."""


class DrawnTokens:
    """A pure function of seed, choice and position: batches and recovery do not change it."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = np.uint64(vocab_size)

    def choose(
        self, seeds: NDArray[np.int64], choices: Int32Array, positions: Int32Array
    ) -> Int32Array:
        mixed = seeds.view(np.uint64) * _SEED
        mixed += choices.astype(np.uint64) * _CHOICE
        mixed += positions.astype(np.uint64) * _POSITION
        mixed = (mixed ^ (mixed >> _HALF)) * _MIX
        return ((mixed >> _HALF) % self._vocab_size).astype(np.int32)


class ScriptedTokens:
    """The same few ids in every row: the one at position p is `script[p % len(script)]`."""

    def __init__(self, script: Iterable[int]) -> None:
        self._script = np.array(list(script), dtype=np.int32)

    def choose(
        self, seeds: NDArray[np.int64], choices: Int32Array, positions: Int32Array
    ) -> Int32Array:
        chosen: Int32Array = self._script[positions % len(self._script)]
        return chosen


class ToldTokens:
    """What plans sampled in another life, plan by plan; drawn ones for plans beyond."""

    def __init__(self, told: Iterable[Int32Array], beyond: ChoosesTokens) -> None:
        self._told = iter(told)
        self._beyond = beyond

    def choose(
        self, seeds: NDArray[np.int64], choices: Int32Array, positions: Int32Array
    ) -> Int32Array:
        told = next(self._told, None)
        return self._beyond.choose(seeds, choices, positions) if told is None else told


class FakeModel:
    """Executes accepted plans (`runnersvc.executor.ExecutesPlans`). A step takes `step_s`, and
    `prefill_s` more for each token of rows that compute more than one.
    """

    def __init__(
        self,
        description: RunnerDescription,
        tokens: ChoosesTokens,
        *,
        step_s: float = 0.0,
        prefill_s: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        rows = description.num_rows + 1  # the dummy row is last
        width = table_width(description.max_seq_len, description.page_size)
        offsets = np.arange(width, dtype=np.int32) % description.page_size
        self._page_table: Int32Array = np.tile(description.pool_tokens + offsets, (rows, 1))
        self._seeds = np.zeros(rows, dtype=np.int64)
        self._choices: Int32Array = np.zeros(rows, dtype=np.int32)
        self._tokens = tokens
        self._step_s, self._prefill_s = step_s, prefill_s
        self._sleep = sleep

    def launch(self, plan: Plan) -> AtOnce:
        """Executes the plan before it returns."""
        began = time.perf_counter()
        return AtOnce(self.execute(plan), began)

    def execute(self, plan: Plan) -> Int32Array:
        """Apply the plan; return the chosen ids when the step's time is over."""
        began = time.perf_counter()
        for row in plan.open_rows:
            self._seeds[row.table_idx] = row.seed
            self._choices[row.table_idx] = row.choice
        self._page_table[plan.write_rows, plan.write_positions] = plan.write_locs
        if not len(plan.step_rows):
            return self._tokens.choose(self._seeds[:0], self._choices[:0], plan.step_rows)
        samples = plan.step_samples
        rows = plan.step_rows[samples]
        positions = plan.step_cached_lens[samples] + plan.step_extend_lens[samples]
        chosen = self._tokens.choose(self._seeds[rows], self._choices[rows], positions)
        prefilled = plan.step_extend_lens[plan.step_extend_lens > 1].sum()
        left_s = self._step_s + self._prefill_s * prefilled - (time.perf_counter() - began)
        if left_s > 0:
            self._sleep(left_s)
        return chosen

    def read_table(self) -> Int32Array:
        """[num_rows + 1, width], a view."""
        return self._page_table
