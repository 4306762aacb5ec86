"""Rows: what the scheduler reads at every step, as one array a column, indexed by `table_idx`."""

from __future__ import annotations

import numpy as np

from cachesvc.request import MAX_STOP_TOKEN_IDS, Req
from servicekit.plan import Int32Array, RunnerDescription


class RowTable:
    """The columns of all rows, and which rows are unused. Lengths are in tokens.

    For a row in use: `cached_len <= total_len = known_len + pending_len <= limit_len`.
    """

    def __init__(self, runner: RunnerDescription) -> None:
        num_rows = runner.num_rows
        self.num_rows = num_rows
        self.prompt_len = np.zeros(num_rows, dtype=np.int32)
        self.limit_len = np.zeros(num_rows, dtype=np.int32)
        self.cached_len = np.zeros(
            num_rows, dtype=np.int32
        )  # K and V present once the plans sent are executed
        self.known_len = np.zeros(num_rows, dtype=np.int32)  # ids known here
        self.pending_len = np.zeros(
            num_rows, dtype=np.int32
        )  # sampled in plans sent, ids not known yet
        self.num_pages = np.zeros(num_rows, dtype=np.int32)
        self.has_sampled = np.zeros(num_rows, dtype=np.bool_)
        self.live = np.zeros(num_rows, dtype=np.bool_)  # its request still wants tokens
        self.pool_is_full = np.zeros(
            num_rows, dtype=np.bool_
        )  # alone and without a page: ends after its results
        self.generation = np.zeros(
            num_rows, dtype=np.int64
        )  # which opening of a row this is, never used twice
        self.session_id = np.zeros(num_rows, dtype=np.int32)
        self.key = np.zeros(num_rows, dtype=np.int32)
        self.ids = np.zeros((num_rows, runner.max_seq_len), dtype=np.int32)
        self._no_id = runner.vocab_size  # equals no sampled id
        self.stop_ids = np.full((num_rows, MAX_STOP_TOKEN_IDS), self._no_id, dtype=np.int32)
        self.max_stop_ids = 1  # columns of stop_ids in use
        self.req: list[Req | None] = [None] * num_rows
        self._unused = list(range(num_rows - 1, -1, -1))

    @property
    def unused_count(self) -> int:
        return len(self._unused)

    def open(self, req: Req, generation: int) -> int:
        """Give `req` a row, its ids known and nothing of it cached. Returns table_idx."""
        idx = self._unused.pop()
        known_len, prompt_len = req.known_len, len(req.prompt_ids)
        self.prompt_len[idx] = prompt_len
        self.limit_len[idx] = req.limit_len
        self.cached_len[idx] = 0
        self.known_len[idx] = known_len
        self.pending_len[idx] = 0
        self.num_pages[idx] = 0
        self.has_sampled[idx] = False
        self.live[idx] = True
        self.pool_is_full[idx] = False
        self.generation[idx] = generation
        self.session_id[idx] = req.session_id
        self.key[idx] = req.key
        self.ids[idx, :prompt_len] = req.prompt_ids
        self.ids[idx, prompt_len:known_len] = req.output_ids
        self.stop_ids[idx] = self._no_id
        self.stop_ids[idx, : len(req.stop_token_ids)] = req.stop_token_ids
        self.max_stop_ids = max(self.max_stop_ids, len(req.stop_token_ids))
        self.req[idx] = req
        return idx

    def close(self, idx: int) -> None:
        self.live[idx] = False
        self.num_pages[idx] = 0
        self.req[idx] = None
        self._unused.append(idx)

    def output_ids(self, idx: int) -> Int32Array:
        """What the row's request has sampled so far, a copy."""
        return self.ids[idx, self.prompt_len[idx] : self.known_len[idx]].copy()
