"""A step between the scheduler and the plan stream: what runs, and what it takes to read the
answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cachesvc.page_table import TableWrite
from cachesvc.request import Req
from cachesvc.rows import RowIndexes, RowSteps
from servicekit.plan import Int32Array, RowOpen


class Sampled(NamedTuple):
    """Tokens for sessions, parallel int32 arrays; tokens of one request are in order."""

    session_ids: Int32Array
    keys: Int32Array
    token_ids: Int32Array


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What it takes to read the answer to a step later, when its rows may hold others."""

    sampling_rows: RowIndexes
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
