"""Rows: what the scheduler reads at every step, as one array a column, indexed by `table_idx`."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cachesvc.prefill import Chunk
from cachesvc.prefix_node import PrefixNode
from cachesvc.request import EMPTY, MAX_STOP_TOKEN_IDS, Req
from servicekit.plan import BoolArray, Int32Array, RunnerDescription

RowIndexes: TypeAlias = NDArray[np.intp]  # table_idx of rows: what numpy indexes with fastest


class RowSteps(NamedTuple):
    """What rows compute in a step, parallel arrays; `num_literals` 0 is the token last sampled."""

    rows: RowIndexes
    cached_lens: Int32Array
    extend_lens: Int32Array
    num_literals: Int32Array
    samples: BoolArray
    literal_ids: Int32Array


class RowTable:
    """The columns of all rows, and which rows are unused. Lengths are in tokens.

    For a row in use: `cached_len <= total_len = known_len + pending_len <= limit_len`, and its
    first `num_tree_pages <= num_pages` pages are those of the path in the prefix tree to `tail`.
    """

    def __init__(self, runner: RunnerDescription) -> None:
        num_rows = runner.num_rows
        self.num_rows = num_rows
        self._page_size = runner.page_size
        self.prompt_len = np.zeros(num_rows, dtype=np.int32)
        self.limit_len = np.zeros(num_rows, dtype=np.int32)
        self.cached_len = np.zeros(
            num_rows, dtype=np.int32
        )  # K and V present once the plans sent are executed
        self.known_len = np.zeros(num_rows, dtype=np.int32)  # ids known here
        self.opened_len = np.zeros(num_rows, dtype=np.int32)  # of those, when the row was opened
        self.pending_len = np.zeros(
            num_rows, dtype=np.int32
        )  # sampled in plans sent, ids not known yet
        self.num_pages = np.zeros(num_rows, dtype=np.int32)
        self.num_tree_pages = np.zeros(num_rows, dtype=np.int32)  # the first ones, locked
        self.num_noted_pages = np.zeros(num_rows, dtype=np.int32)  # see `known_pages.py`
        self.has_sampled = np.zeros(num_rows, dtype=np.bool_)
        self.live = np.zeros(num_rows, dtype=np.bool_)  # its request still wants tokens
        self.pool_is_full = np.zeros(
            num_rows, dtype=np.bool_
        )  # alone and without a page: ends after its results
        self.generation = np.zeros(
            num_rows, dtype=np.int64
        )  # which opening of a row this is, never used twice
        self.arrival = np.zeros(num_rows, dtype=np.int64)
        self.session_id = np.zeros(num_rows, dtype=np.int32)
        self.key = np.zeros(num_rows, dtype=np.int32)
        self.ids = np.zeros((num_rows, runner.max_seq_len), dtype=np.int32)
        self._no_id = runner.vocab_size  # equals no sampled id
        self.stop_ids = np.full((num_rows, MAX_STOP_TOKEN_IDS), self._no_id, dtype=np.int32)
        self.max_stop_ids = 1  # columns of stop_ids in use
        self.req: list[Req | None] = [None] * num_rows
        self.tail: list[PrefixNode | None] = [None] * num_rows  # where its path in the tree ends
        self._unused = list(range(num_rows - 1, -1, -1))

    @property
    def unused_count(self) -> int:
        return len(self._unused)

    def open(self, req: Req, generation: int, tail: PrefixNode, num_pages: int) -> int:
        """Give `req` a row, its ids known and its first `num_pages` pages cached, which it shares.
        Returns table_idx.
        """
        idx = self._unused.pop()
        known_len, prompt_len = req.known_len, len(req.prompt_ids)
        self.prompt_len[idx] = prompt_len
        self.limit_len[idx] = req.limit_len
        self.cached_len[idx] = num_pages * self._page_size
        self.known_len[idx] = self.opened_len[idx] = known_len
        self.pending_len[idx] = 0
        self.num_pages[idx] = self.num_tree_pages[idx] = num_pages
        self.num_noted_pages[idx] = num_pages
        self.tail[idx] = tail
        self.has_sampled[idx] = False
        self.live[idx] = True
        self.pool_is_full[idx] = False
        self.generation[idx] = generation
        self.arrival[idx] = req.arrival
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
        self.num_pages[idx] = self.num_tree_pages[idx] = 0
        self.tail[idx] = self.req[idx] = None
        self._unused.append(idx)

    def disown(self, idx: int, tail: PrefixNode) -> None:
        """A row stays open until its request has failed, and owns nothing any more."""
        self.live[idx] = False
        self.cached_len[idx] = 0
        self.num_pages[idx] = self.num_tree_pages[idx] = 0
        self.tail[idx] = tail

    @property
    def open_rows(self) -> list[int]:
        """table_idx of every row in use."""
        return [idx for idx, req in enumerate(self.req) if req is not None]

    @property
    def any_without_a_token(self) -> bool:
        """Whether a request that runs has gained no token in its row."""
        return bool((self.live & (self.known_len == self.opened_len)).any())

    def output_ids(self, idx: int) -> Int32Array:
        """What the row's request has sampled so far, a copy."""
        return self.ids[idx, self.prompt_len[idx] : self.known_len[idx]].copy()

    def advance(self, decode: RowIndexes, chunks: list[Chunk]) -> RowSteps:
        """Move rows past a step, and say what it computes: a token of each row of `decode`, and
        chunks of prompts.
        """
        rows, literal_ids = decode, EMPTY
        extend_lens = np.ones(len(decode), dtype=np.int32)
        num_literals = np.zeros(len(decode), dtype=np.int32)
        if chunks:
            prefill_rows = np.array([chunk.table_idx for chunk in chunks], dtype=np.intp)
            chunk_lens = np.array([chunk.extend_len for chunk in chunks], dtype=np.int32)
            literals = [
                self.ids[idx, (at := self.cached_len[idx]) : at + extend_len]
                for idx, extend_len in chunks
            ]
            rows = np.concatenate((decode, prefill_rows))
            extend_lens = np.concatenate((extend_lens, chunk_lens))
            num_literals = np.concatenate((num_literals, chunk_lens))
            literal_ids = np.concatenate(literals)
        cached_lens = self.cached_len[rows]
        device_lens = cached_lens + extend_lens
        samples = device_lens == self.known_len[rows] + self.pending_len[rows]
        self.cached_len[rows] = device_lens
        sampling_rows = rows[samples]
        self.pending_len[sampling_rows] += 1
        self.has_sampled[sampling_rows] = True
        return RowSteps(rows, cached_lens, extend_lens, num_literals, samples, literal_ids)
