"""What one gateway is still to hear, merged until it can be written."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

import structlog
from pagewire.v1 import cache_pb2 as pb

from cachesvc.outputs import TokenLogprobs
from cachesvc.request import Admitted, Finished
from cachesvc.step import Sampled
from servicekit.errors import PagewireError
from servicekit.plan import RunnerDescription

log = structlog.get_logger()

QUIET_TICKS = 9  # of nothing said, then a word on the load


class Again(NamedTuple):
    """Requests that an earlier session had, and the tokens of their answers that came along."""

    requests: int
    held_tokens: int


class Load(NamedTuple):
    """How much there is to do."""

    running_requests: int
    waiting_requests: int
    last_result_plan_id: int


class GatewaySession:
    """The outbox of a gateway. Nobody waits who puts something in."""

    def __init__(self, session_id: int, model_fingerprint: str) -> None:
        self.session_id = session_id
        self.model_fingerprint = model_fingerprint  # "": any
        self.failure: PagewireError | None = None  # what ended the session
        self.last_key = 0
        self._again = self._again_before = Again(0, 0)  # now, and a tick ago
        self._quiet_ticks = 0
        self._pending = pb.SessionResponse()
        self._ready = asyncio.Event()
        self._ended = False

    async def take(self) -> pb.SessionResponse | None:
        """Everything put in since the last call as one message, when there is something; None once
        the session ended.
        """
        await self._ready.wait()
        if self._ended:
            return None
        self._ready.clear()
        self._quiet_ticks = 0
        message, self._pending = self._pending, pb.SessionResponse()
        return message

    def end(self, failure: PagewireError | None = None) -> None:
        """The gateway is gone, or ends with `failure`: what is still here reaches nobody."""
        self.failure = self.failure or failure
        self._ended = True
        self._ready.set()

    def tick(self, load: Load) -> None:
        """A tick of the manager passed: says how much there is to do when nothing else was said for
        a while, so that silence means something.
        """
        if self._again == self._again_before:  # no more come
            self.log_again()
        self._again_before = self._again
        self._quiet_ticks += 1
        if self._quiet_ticks >= QUIET_TICKS and not self._ready.is_set():
            self._pending.load.running_requests = load.running_requests
            self._pending.load.waiting_requests = load.waiting_requests
            self._pending.load.last_result_plan_id = load.last_result_plan_id
            self._ready.set()

    def note_again(self, held_tokens: int) -> None:
        """A request came that an earlier session had, with so many tokens of its answer."""
        self._again = Again(self._again.requests + 1, self._again.held_tokens + held_tokens)

    def log_again(self) -> None:
        """One line for all that came since the last one, when any did."""
        if self._again.requests:
            log.info(
                "requests resubmitted",
                session_id=self.session_id,
                requests=self._again.requests,
                held_tokens=self._again.held_tokens,
            )
            self._again = self._again_before = Again(0, 0)

    def put_opened(self, *, serving: bool, runner: RunnerDescription | None) -> None:
        self._pending.opened.Clear()
        self._pending.opened.serving = serving
        if runner is not None:
            self._pending.opened.limits.max_seq_len = runner.max_seq_len
            self._pending.opened.limits.vocab_size = runner.vocab_size
            self._pending.opened.limits.pool_tokens = runner.pool_tokens
        self._ready.set()

    def put_accepted(self, key: int) -> None:
        self._pending.accepted.add(key=key)
        self._ready.set()

    def put_rejected(self, key: int, error: PagewireError) -> None:
        self._pending.rejected.append(_rejected(key, error))
        self._ready.set()

    def put_tokens(self, keys: list[int], token_ids: list[int], now_us: int) -> None:
        output = self._pending.step_output
        if not output.keys:
            output.sent_at_us = now_us
        output.keys.extend(keys)
        output.token_ids.extend(token_ids)
        self._ready.set()

    def put_logprobs(self, logprobs: TokenLogprobs) -> None:
        self._pending.step_output.logprobs.add(
            key=logprobs.key, chosen=logprobs.chosen, top_ids=logprobs.top_ids, top=logprobs.top
        )
        self._ready.set()

    def put_admitted(self, admitted: Admitted) -> None:
        self._pending.admitted.add(key=admitted.key, cached_tokens=admitted.cached_len)
        self._ready.set()

    def put_finished(self, finished: Finished) -> None:
        ended = self._pending.finished.add(
            key=finished.key, cause=pb.FinishCause.Value(f"FINISH_CAUSE_{finished.cause.value}")
        )
        if finished.failure is not None:
            ended.failure.CopyFrom(_rejected(finished.key, finished.failure))
        self._ready.set()


def put_sampled(sessions: Mapping[int, GatewaySession], sampled: Sampled, now_us: int) -> None:
    """Put a step's tokens into the outboxes that they are for. Whose session is gone gets none.
    `now_us` is the wall clock, since 1970.
    """
    session_ids, keys, token_ids = sampled
    while len(session_ids):  # most often there is one session
        session_id = int(session_ids[0])
        its = session_ids == session_id
        if (session := sessions.get(session_id)) is not None:
            session.put_tokens(keys[its].tolist(), token_ids[its].tolist(), now_us)
        session_ids, keys, token_ids = session_ids[~its], keys[~its], token_ids[~its]


def _rejected(key: int, error: PagewireError) -> pb.Rejected:
    rejected = pb.Rejected(
        key=key,
        code=error.code_name,
        reason=error.reason,
        message=error.message,
        metadata=error.metadata,
    )
    if error.retry_after_s is not None:
        rejected.retry_after.FromNanoseconds(round(error.retry_after_s * 1e9))
    return rejected
