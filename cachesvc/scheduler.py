"""What runs next: continuous batching, chunked prefill beside decode, requests in order of rank.

A step is built in one order: close rows that ended; put full pages of known ids into the prefix
tree; let running rows go on, decode first, the one of last rank preempted where pages are short;
admit waiting requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cachesvc.admission import Admitter
from cachesvc.ledger import ChangeReason
from cachesvc.limits import Limits
from cachesvc.manager import CacheManager
from cachesvc.outputs import Output, token_logprobs
from cachesvc.page_table import TableWrite, joined
from cachesvc.prefill import Chunk, PrefillBudget
from cachesvc.request import Admitted, FinishCause, Finished, Req, ReqState
from cachesvc.rows import RowIndexes
from cachesvc.running import RunningRows
from cachesvc.step import Sampled, Step, StepRecord
from cachesvc.story import Preemption, PreemptionCause, Stories
from cachesvc.suspects import Suspects
from cachesvc.totals import ScheduleTotals
from cachesvc.waiting import WaitingQueue
from servicekit.arith import ceil_div
from servicekit.plan import Int32Array, Logprobs, RowOpen

NO_ROWS: RowIndexes = np.zeros(0, dtype=np.intp)


class _Built(NamedTuple):
    """A step in the making."""

    closed: list[int]
    opened: list[RowOpen]
    writes: dict[int, TableWrite]  # by row


class Scheduler:
    """Owns the requests, and the order in which they wait and run.

    `outputs` collects what sessions are to hear; whoever drives the scheduler takes it.
    """

    def __init__(self, manager: CacheManager, stories: Stories, limits: Limits) -> None:
        self.manager = manager
        self.outputs: list[Output] = []
        self.totals = ScheduleTotals()
        self.waiting = WaitingQueue(limits.long_len)
        self.suspects = Suspects()
        self._admitter = Admitter(self.waiting, stories, self.suspects)
        self._limits = limits
        self._stories = stories
        self._plan_id = 0
        self._running = RunningRows()
        self._ended: list[tuple[int, ChangeReason]] = []  # rows to be closed with the next step

    @property
    def running_count(self) -> int:
        return len(self._running)

    def end(self, req: Req, reason: ChangeReason) -> None:
        """Take a request out, whatever it was doing; its row closes with the next step, late
        results are dropped.
        """
        if req.state is ReqState.WAITING:
            self.waiting.remove(req)
        elif req.state is ReqState.RUNNING:
            assert req.table_idx is not None
            rows = self.manager.rows
            req.output_ids = rows.output_ids(req.table_idx)
            rows.live[req.table_idx] = False
            self._running.remove(req.table_idx)
            self._ended.append((req.table_idx, reason))
        req.state = ReqState.ENDED

    def finish(self, req: Req, cause: FinishCause) -> None:
        """End a request and tell its session."""
        self.end(req, ChangeReason.FINISHED)
        self.outputs.append(Finished(req.session_id, req.key, cause))

    def put_back(self, cause: PreemptionCause, plan_id: int) -> None:
        """Every row is about to go, with the plan `plan_id`: running requests wait again with what
        they sampled.
        """
        for idx in self.manager.rows.open_rows:
            if self._req(idx).state is ReqState.RUNNING:
                self._put_back(idx, cause, plan_id)
        self._running.clear()
        self._ended.clear()

    def move_to(self, manager: CacheManager) -> None:
        """Go on with other rows and pages. Nothing runs: `put_back` came before."""
        self.manager = manager

    def take(self, req: Req) -> None:
        """Let a new request wait; one that resumes the whole of its answer finishes."""
        self.waiting.add(req)
        if np.isin(req.output_ids[-1:], req.stop_token_ids).any():
            self.finish(req, FinishCause.STOP_TOKEN)
        else:
            self._finish_if_full(req)

    def finish_what_no_longer_fits(self) -> None:
        """Waiting requests that have sampled all that they may, by a context that became smaller,
        or more than a pool holds that became smaller.
        """
        for req in self.waiting:
            self._finish_if_full(req)

    def _finish_if_full(self, req: Req) -> None:
        if req.known_len >= req.limit_len:
            self.finish(req, FinishCause.MAX_TOKENS)
        elif ceil_div(req.known_len, self.manager.page_size) > self.manager.usable_count:
            self.finish(req, FinishCause.CACHE_FULL)

    def requests(self) -> Iterator[Req]:
        """Every request that has not ended, running ones first."""
        for idx in self._running:
            yield self._req(idx)
        yield from self.waiting

    # Building a step

    def schedule(self, plan_id: int) -> Step | None:
        """The next step, or None when it would change nothing."""
        self._plan_id = self.manager.ledger.plan_id = plan_id
        self._stories.begin_step(plan_id)
        built = _Built(self._close_ended(), [], {})
        self._share(built)
        decode, prefill, preempted = self._continue_running(built)
        budget = PrefillBudget(
            max(self.manager.step_budget_tokens - len(decode), 1),  # prefill is never starved
            self._limits.long_len,
            self._limits.max_long_prefills,
        )
        for idx, tokens_to_go in prefill:
            budget.ask(idx, tokens_to_go)
        grown = self.manager.grow(self.manager.at_page_end(decode))
        if len(self.waiting):
            self._admit(budget, built, preempted=preempted)
        chunks = budget.chunks()
        write = joined([*built.writes.values(), grown])
        if not (built.closed or len(write.rows) or len(decode) or chunks):
            return None
        return self._step(built, write, decode, chunks)

    def empty_step(self) -> Step:
        """A step that computes nothing, for a plan that only resets rows."""
        return self._step(_Built([], [], {}), joined([]), NO_ROWS, [])

    def _step(
        self, built: _Built, write: TableWrite, decode: RowIndexes, chunks: list[Chunk]
    ) -> Step:
        rows = self.manager.rows
        steps = rows.advance(decode, chunks)
        self.manager.note_filled(self._plan_id, steps)
        self.manager.note_known(self._running.array)
        self.totals.prompt_tokens += len(steps.literal_ids)
        sampling_rows = steps.rows[steps.samples]
        record = StepRecord(
            sampling_rows=sampling_rows,
            generations=rows.generation[sampling_rows],
            row_reqs=tuple(rows.req),
            continues=len(decode) > 0,
        )
        closed = np.array(built.closed, dtype=np.int32)
        return Step(closed, tuple(built.opened), write, steps, record)

    def _close_ended(self) -> list[int]:
        ended, self._ended = self._ended, []
        for idx, reason in ended:
            self.manager.close_row(idx, reason)
        return [idx for idx, _ in ended]

    def _share(self, built: _Built) -> None:
        due = self.manager.rows_to_share(self._running.array)
        if len(due):
            built.writes.update(self.manager.share(due))

    def _continue_running(self, built: _Built) -> tuple[RowIndexes, list[tuple[int, int]], bool]:
        """What running rows want: those that decode, those that prefill with their tokens to go,
        and whether any was preempted for it.
        """
        preempted = False
        while True:
            decode, prefill = self._wanting()
            growing = self.manager.at_page_end(decode)
            lacking = len(growing) - self.manager.available_count
            if lacking <= 0 or not len(growing):
                return decode, prefill, preempted
            if len(self._running) == 1:
                self._end_when_alone(int(growing[0]), built)
            else:
                first = self._req(int(growing[0]))
                self._preempt_last(first, lacking, built)
                preempted = True

    def _wanting(self) -> tuple[RowIndexes, list[tuple[int, int]]]:
        """Rows that may compute: those that decode one token, and (row, tokens to go) of those that
        prefill.
        """
        rows = self.manager.rows
        running = self._running.array
        wants = rows.known_len + rows.pending_len < rows.limit_len
        wants &= ~rows.pool_is_full
        decode = running[(wants & rows.has_sampled)[running]]
        if len(decode) == len(running):
            return decode, []
        prefill = running[(wants & ~rows.has_sampled)[running]]
        left = rows.known_len[prefill] - rows.cached_len[prefill]
        return decode, list(zip(prefill.tolist(), left.tolist(), strict=True))

    def _end_when_alone(self, idx: int, built: _Built) -> None:
        """The pool holds no page for the only running row: it ends once its outstanding tokens are
        here.
        """
        self.manager.rows.pool_is_full[idx] = True
        if self.manager.rows.pending_len[idx] == 0:
            self.finish(self._req(idx), FinishCause.CACHE_FULL)
            built.writes.pop(idx, None)
            built.closed.extend(self._close_ended())

    def _preempt_last(self, first: Req, lacking_pages: int, built: _Built) -> None:
        """Take the row of the request of last rank: it waits again, ahead of all that come after.
        What was to be written for the row is not.
        """
        idx = self._running.pop_last()
        self.totals.preempted += 1
        built.writes.pop(idx, None)
        self._put_back(idx, PreemptionCause.PAGES_SHORT, self._plan_id, first, lacking_pages)
        self.manager.close_row(idx, ChangeReason.PREEMPTED)
        built.closed.append(idx)

    def _put_back(
        self,
        idx: int,
        cause: PreemptionCause,
        plan_id: int,
        first: Req | None = None,
        lacking_pages: int = 0,
    ) -> None:
        req = self._req(idx)
        req.output_ids = self.manager.rows.output_ids(idx)
        req.state, req.table_idx = ReqState.WAITING, None
        self.waiting.add(req)
        req.story.preempted(
            Preemption(
                plan_id,
                cause,
                for_arrival=None if first is None else first.arrival,
                lacking_pages=lacking_pages,
                sampled_len=len(req.output_ids),
                step=self._stories.next_moment(plan_id).step - (first is not None),
            )
        )

    def _req(self, idx: int) -> Req:
        req = self.manager.rows.req[idx]
        assert req is not None
        return req

    def _admit(self, budget: PrefillBudget, built: _Built, *, preempted: bool) -> None:
        rows = self.manager.rows
        for req, write in self._admitter.admit(self.manager, budget, preempted=preempted):
            idx = req.table_idx
            assert idx is not None
            self._running.add(idx, lambda idx: self._req(idx).rank)
            built.opened.append(req.row_open(idx))
            built.writes[idx] = write
            cached_len = int(rows.cached_len[idx])
            is_first = len(req.story.admissions) == 1
            if req.submission.is_again or not is_first:
                self.totals.recomputed_tokens += int(rows.known_len[idx]) - cached_len
            else:
                self.totals.cached_tokens += min(cached_len, len(req.prompt_ids))
                self.totals.admitted_prompt_tokens += len(req.prompt_ids)
            if is_first:
                told_len = min(cached_len, len(req.prompt_ids))
                self.outputs.append(Admitted(req.session_id, req.key, told_len))

    # Reading a result

    def apply_result(
        self, record: StepRecord, sampled_ids: Int32Array, logprobs: Logprobs | None = None
    ) -> list[Req]:
        """Take in what a step sampled. Tokens of rows that closed or ended since are dropped.

        Returns the requests for which it is no id of the vocabulary: nothing of it is taken in.
        """
        rows = self.manager.rows
        at, token_ids = record.sampling_rows, sampled_ids
        wanted = rows.live[at]
        wanted &= rows.generation[at] == record.generations
        if not wanted.all():
            at, token_ids = at[wanted], token_ids[wanted]
        is_id = token_ids.view(np.uint32) < self.manager.runner.vocab_size
        invalid: list[Req] = []
        if not is_id.all():
            invalid = [self._req(idx) for idx in at[~is_id].tolist()]
            at, token_ids = at[is_id], token_ids[is_id]
        if not len(at):
            return invalid
        known_len = rows.known_len[at]
        rows.ids[at, known_len] = token_ids
        known_len += 1
        rows.known_len[at] = known_len
        rows.pending_len[at] -= 1
        self.suspects.tokens_came(rows)
        self.totals.sampled_tokens += len(at)
        self.outputs.append(Sampled(rows.session_id[at], rows.key[at], token_ids))
        if logprobs is not None:
            self.outputs += token_logprobs(record, at, rows, logprobs)
        stopped = (rows.stop_ids[at, : rows.max_stop_ids] == token_ids[:, None]).any(axis=1)
        at_limit = known_len >= rows.limit_len[at]
        out_of_pages = rows.pool_is_full[at] & (rows.pending_len[at] == 0)
        for nth in np.flatnonzero(stopped | at_limit | out_of_pages).tolist():
            req = self._req(int(at[nth]))
            if stopped[nth]:
                self.finish(req, FinishCause.STOP_TOKEN)
            elif at_limit[nth]:
                self.finish(req, FinishCause.MAX_TOKENS)
            else:
                self.finish(req, FinishCause.CACHE_FULL)
        return invalid
