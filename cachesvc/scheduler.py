"""What runs next: first come, first served, continuous batching, chunked prefill beside decode.

A step is built in one order: close rows that ended; let running rows go on, decode first, the
youngest preempted where pages are short; admit waiting requests in order of arrival.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from operator import attrgetter

import numpy as np

from cachesvc.manager import CacheManager, TableWrite
from cachesvc.request import EMPTY, FinishCause, Finished, Req, ReqState
from cachesvc.step import Continued, RowSteps, Sampled, Step, StepRecord, joined
from servicekit.arith import ceil_div
from servicekit.plan import Int32Array, RowOpen

_ARRIVAL = attrgetter("arrival")


class Scheduler:
    """Owns the requests, and the order in which they wait and run.

    `outputs` collects what sessions are to hear; whoever drives the scheduler takes it.
    """

    def __init__(self, manager: CacheManager, step_budget_tokens: int) -> None:
        self.manager = manager
        self.outputs: list[Sampled | Finished] = []
        self.preempted_total = 0
        self.prompt_tokens_total = 0
        self.sampled_tokens_total = 0
        self._budget = step_budget_tokens
        self._openings = 0
        self._waiting: list[Req] = []  # by arrival
        self._running: list[int] = []  # table_idx by arrival
        self._ended: list[int] = []  # rows whose request is over, to be closed with the next step

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        return len(self._running)

    def submit(self, req: Req) -> None:
        bisect.insort(self._waiting, req, key=_ARRIVAL)

    def end(self, req: Req) -> None:
        """Take a request out, whatever it was doing; its row closes with the next step, late
        results are dropped.
        """
        if req.state is ReqState.WAITING:
            self._waiting.remove(req)
        elif req.state is ReqState.RUNNING:
            assert req.table_idx is not None
            self._retire(req.table_idx)
            self._ended.append(req.table_idx)
        req.state = ReqState.ENDED

    def finish(self, req: Req, cause: FinishCause) -> None:
        """End a request and tell its session."""
        self.end(req)
        self.outputs.append(Finished(req.session_id, req.key, cause))

    def start_over(self, manager: CacheManager) -> None:
        """Every row is gone, with its pages: running requests wait again, by arrival, with what
        they sampled.
        """
        for idx in self._running:
            self._put_back(idx)
        self._running.clear()
        self._ended.clear()
        self.manager = manager

    def requests(self) -> Iterator[Req]:
        """Every request that has not ended, running ones first."""
        for idx in self._running:
            req = self.manager.rows.req[idx]
            assert req is not None
            yield req
        yield from list(self._waiting)

    # Building a step

    def schedule(self) -> Step | None:
        """The next step, or None when there is nothing to compute and no row to close."""
        closed = self._close_ended()
        decode, prefill, budget_left, preempted = self._continue_running(closed)
        writes = [self.manager.grow(decode, self.manager.rows.cached_len[decode] + 1)]
        opened: list[RowOpen] = []
        if not preempted:
            prefill = self._admit(prefill, budget_left, opened, writes)
        if not (closed or opened or len(decode) or prefill):
            return None
        return self._step(closed, opened, writes, decode, prefill)

    def empty_step(self) -> Step:
        """A step that computes nothing, for a plan that only resets rows."""
        return self._step([], [], [], EMPTY, [])

    def _step(
        self,
        closed: list[int],
        opened: list[RowOpen],
        writes: list[TableWrite],
        decode: Int32Array,
        prefill: list[tuple[int, int]],
    ) -> Step:
        steps, record = self._advance(decode, prefill)
        return Step(
            close_rows=np.array(closed, dtype=np.int32),
            open_rows=tuple(opened),
            write=joined(writes),
            steps=steps,
            record=record,
        )

    def _close_ended(self) -> list[int]:
        closed = self._ended
        self._ended = []
        for idx in closed:
            self.manager.close_row(idx)
        return closed

    def _continue_running(self, closed: list[int]) -> Continued:
        """What running rows compute. Rows that are preempted or end here are added to `closed`."""
        preempted = False
        while True:
            decode, prefill = self._wanting()
            lacking = int(
                self.manager.missing_pages(decode, self.manager.rows.cached_len[decode] + 1).sum()
            )
            if lacking <= self.manager.pool.free_count:
                break
            if len(self._running) == 1:
                self._end_when_alone(self._running[0], closed)
            else:
                closed.append(self._preempt_youngest())
                preempted = True
        budget = max(self._budget - len(decode), 1)  # prefill is never starved
        chunks: list[tuple[int, int]] = []
        for idx, wanted in prefill:
            if budget > 0:
                chunks.append((idx, min(wanted, budget)))
                budget -= chunks[-1][1]
        return Continued(decode, chunks, budget, preempted)

    def _wanting(self) -> tuple[Int32Array, list[tuple[int, int]]]:
        """Rows that may compute: those that decode one token, and (row, tokens left) of those that
        prefill.
        """
        rows = self.manager.rows
        running = np.array(self._running, dtype=np.int32)
        total_len = rows.known_len[running] + rows.pending_len[running]
        wants = (total_len < rows.limit_len[running]) & ~rows.pool_is_full[running]
        decode = running[wants & rows.has_sampled[running]]
        prefill = running[wants & ~rows.has_sampled[running]]
        left = rows.known_len[prefill] - rows.cached_len[prefill]
        return decode, list(zip(prefill.tolist(), left.tolist(), strict=True))

    def _end_when_alone(self, idx: int, closed: list[int]) -> None:
        """The pool holds no page for the only running row: it ends once its outstanding tokens are
        here.
        """
        self.manager.rows.pool_is_full[idx] = True
        if self.manager.rows.pending_len[idx] == 0:
            req = self.manager.rows.req[idx]
            assert req is not None
            self.finish(req, FinishCause.CACHE_FULL)
            closed.extend(self._close_ended())

    def _preempt_youngest(self) -> int:
        """Take the row of the request that arrived last; it waits again, ahead of all that arrived
        later.
        """
        idx = self._running.pop()
        self.preempted_total += 1
        self._put_back(idx)
        self.manager.close_row(idx)
        return idx

    def _put_back(self, idx: int) -> None:
        rows = self.manager.rows
        req = rows.req[idx]
        assert req is not None
        req.output_ids = rows.output_ids(idx)
        req.state, req.table_idx = ReqState.WAITING, None
        bisect.insort(self._waiting, req, key=_ARRIVAL)

    def _admit(
        self,
        prefill: list[tuple[int, int]],
        budget: int,
        opened: list[RowOpen],
        writes: list[TableWrite],
    ) -> list[tuple[int, int]]:
        """Give waiting requests rows, and pages for all their known ids, while there are any and
        budget is left.
        """
        prefill = list(prefill)
        manager = self.manager
        while self._waiting and budget > 0 and manager.rows.unused_count:
            req = self._waiting[0]
            needed = ceil_div(req.known_len, manager.page_size)
            if needed > manager.pool.num_pages:  # what it sampled in a larger pool
                self.finish(req, FinishCause.CACHE_FULL)
                continue
            if needed > manager.pool.free_count:
                break
            del self._waiting[0]
            self._openings += 1
            idx = manager.open_row(req, self._openings)
            req.state, req.table_idx = ReqState.RUNNING, idx
            bisect.insort(self._running, idx, key=self._arrival_of_row)
            opened.append(req.row_open(idx))
            writes.append(
                manager.grow(np.array([idx], dtype=np.int32), manager.rows.known_len[[idx]])
            )
            prefill.append((idx, min(req.known_len, budget)))
            budget -= prefill[-1][1]
        return prefill

    def _arrival_of_row(self, idx: int) -> int:
        req = self.manager.rows.req[idx]
        assert req is not None
        return req.arrival

    def _advance(
        self, decode: Int32Array, prefill: list[tuple[int, int]]
    ) -> tuple[RowSteps, StepRecord]:
        """Move the rows past this step, and say what it computes."""
        rows = self.manager.rows
        prefill_rows = np.array([idx for idx, _ in prefill], dtype=np.int32)
        chunk_lens = np.array([chunk for _, chunk in prefill], dtype=np.int32)
        step_rows = np.concatenate((decode, prefill_rows))
        extend_lens = np.concatenate((np.ones(len(decode), dtype=np.int32), chunk_lens))
        cached_lens = rows.cached_len[step_rows]
        literals = [
            rows.ids[idx, (at := rows.cached_len[idx]) : at + chunk] for idx, chunk in prefill
        ]
        device_lens = cached_lens + extend_lens
        samples = device_lens == rows.known_len[step_rows] + rows.pending_len[step_rows]
        rows.cached_len[step_rows] = device_lens
        sampling_rows = step_rows[samples]
        rows.pending_len[sampling_rows] += 1
        rows.has_sampled[sampling_rows] = True
        self.prompt_tokens_total += int(chunk_lens.sum())
        steps = RowSteps(
            rows=step_rows,
            cached_lens=cached_lens,
            extend_lens=extend_lens,
            num_literals=np.concatenate((np.zeros(len(decode), dtype=np.int32), chunk_lens)),
            samples=samples,
            literal_ids=np.concatenate(literals) if literals else EMPTY,
        )
        record = StepRecord(
            sampling_rows=sampling_rows,
            generations=rows.generation[sampling_rows],
            row_reqs=tuple(rows.req),
            continues=len(decode) > 0,
        )
        return steps, record

    # Reading a result

    def apply_result(self, record: StepRecord, sampled_ids: Int32Array) -> None:
        """Take in what a step sampled. Tokens of rows that closed or ended since are dropped."""
        rows = self.manager.rows
        wanted = (rows.generation[record.sampling_rows] == record.generations) & rows.live[
            record.sampling_rows
        ]
        at, token_ids = record.sampling_rows[wanted], sampled_ids[wanted]
        if not len(at):
            return
        rows.ids[at, rows.known_len[at]] = token_ids
        rows.known_len[at] += 1
        rows.pending_len[at] -= 1
        self.sampled_tokens_total += len(at)
        self.outputs.append(Sampled(rows.session_id[at], rows.key[at], token_ids))
        stopped = (rows.stop_ids[at, : rows.max_stop_ids] == token_ids[:, None]).any(axis=1)
        at_limit = rows.known_len[at] >= rows.limit_len[at]
        out_of_pages = rows.pool_is_full[at] & (rows.pending_len[at] == 0)
        for nth in np.flatnonzero(stopped | at_limit | out_of_pages).tolist():
            req = rows.req[int(at[nth])]
            assert req is not None
            if stopped[nth]:
                self.finish(req, FinishCause.STOP_TOKEN)
            elif at_limit[nth]:
                self.finish(req, FinishCause.MAX_TOKENS)
            else:
                self.finish(req, FinishCause.CACHE_FULL)

    def _retire(self, idx: int) -> None:
        self.manager.rows.live[idx] = False
        self._running.remove(idx)
