"""A step between the scheduler and the plan stream: what runs, and what it takes to read the
answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cachesvc.manager import NO_WRITE, TableWrite
from cachesvc.request import Req
from servicekit.plan import BoolArray, Int32Array, RowOpen


class Sampled(NamedTuple):
    """Tokens for sessions, parallel int32 arrays; tokens of one request are in order."""

    session_ids: Int32Array
    keys: Int32Array
    token_ids: Int32Array


class RowSteps(NamedTuple):
    """What rows compute in a step, parallel arrays; `num_literals` 0 is the token last sampled."""

    rows: Int32Array
    cached_lens: Int32Array
    extend_lens: Int32Array
    num_literals: Int32Array
    samples: BoolArray
    literal_ids: Int32Array


class Continued(NamedTuple):
    """What running rows compute in a step."""

    decode: Int32Array  # rows with one token each
    prefill: list[tuple[int, int]]  # rows, and the length of their chunk
    budget_left: int  # in tokens
    preempted: bool  # pages were short


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What it takes to read the answer to a step later, when its rows may hold others."""

    sampling_rows: Int32Array
    generations: NDArray[np.int64]  # of sampling_rows, when the step was built
    row_reqs: tuple[Req | None, ...]  # by table_idx, likewise
    continues: bool  # a row of it has sampled before: the executor should not have had to wait


@dataclass(frozen=True, slots=True)
class Step:
    """A plan without its numbers."""

    close_rows: Int32Array
    open_rows: tuple[RowOpen, ...]
    write: TableWrite
    steps: RowSteps
    record: StepRecord


def joined(writes: list[TableWrite]) -> TableWrite:
    """The writes as one, in order."""
    given = [write for write in writes if len(write.rows)]
    if len(given) <= 1:
        return given[0] if given else NO_WRITE
    return TableWrite(*(np.concatenate(columns) for columns in zip(*given, strict=True)))
