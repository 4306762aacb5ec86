"""CacheService: sessions of gateways in front of the core. Decodes, calls, encodes."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import structlog
from pagewire.v1 import cache_pb2 as pb
from pagewire.v1 import cache_pb2_grpc

from cachesvc.admin import explanation, page_history, pages_of_request
from cachesvc.core import Core
from cachesvc.outputs import TokenLogprobs
from cachesvc.request import Finished, Submission
from cachesvc.runner_client import RunnerClient
from cachesvc.session import GatewaySession, put_sampled
from cachesvc.stats import load_of, stats_of
from cachesvc.step import Sampled
from servicekit.errors import (
    FailedPrecondition,
    InvalidArgument,
    PagewireError,
    Reason,
    Unavailable,
)
from servicekit.handshake import check_fingerprint, check_protocol_version
from servicekit.plan import RunnerDescription
from servicekit.sampling_codec import decode_sampling

log = structlog.get_logger()

FULL_COLLECTIONS = 1000  # younger ones between two; each walks over every node of the tree
FLUSH_PAGES = 1000  # at a time
TICK_S = 0.1  # how late a waiting request may expire; see `session.QUIET_TICKS`
CHECK_AFTER_TICKS = 10  # of idleness: once, then again after the next work


class CacheService(cache_pb2_grpc.CacheServiceServicer):
    """Owns the sessions."""

    def __init__(self, core: Core, runner_address: str) -> None:
        self.core = core
        self.runner_client = RunnerClient(runner_address, core, self._on_change)
        self._draining = False
        self.changed = asyncio.Event()  # serving may have changed
        self.idle = asyncio.Event()  # no request is left
        self.idle.set()
        self._sessions: dict[int, GatewaySession] = {}
        self._next_session_id = 1
        self._told: tuple[bool, object] = (False, None)
        self._idle_ticks = 0

    async def Session(  # noqa: N802 # the RPC's name
        self, request_iterator: AsyncIterator[pb.SessionRequest], context: Any
    ) -> AsyncIterator[pb.SessionResponse]:
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        session = self._open(first)
        reader = asyncio.create_task(self._read(session, requests))
        reader.add_done_callback(lambda _: session.end())
        try:
            while (message := await session.take()) is not None:
                yield message
            if session.failure is not None:
                raise session.failure
            await reader  # raises what a bad command raised
        finally:
            reader.cancel()
            self._close(session)

    async def GetStats(  # noqa: N802 # the RPC's name
        self, request: pb.GetStatsRequest, context: Any
    ) -> pb.GetStatsResponse:
        return stats_of(self.core)

    async def PageHistory(  # noqa: N802 # the RPC's name
        self, request: pb.PageHistoryRequest, context: Any
    ) -> pb.PageHistoryResponse:
        return page_history(self.core, request.page_id)

    async def RequestPages(  # noqa: N802 # the RPC's name
        self, request: pb.RequestPagesRequest, context: Any
    ) -> pb.RequestPagesResponse:
        return pages_of_request(self.core, request.request_id)

    async def Explain(  # noqa: N802 # the RPC's name
        self, request: pb.ExplainRequest, context: Any
    ) -> pb.ExplainResponse:
        return explanation(self.core, request.request_id)

    async def FlushCache(  # noqa: N802 # the RPC's name
        self, request: pb.FlushCacheRequest, context: Any
    ) -> pb.FlushCacheResponse:
        evicted = 0
        while (count := self.core.ready_scheduler().manager.flush(FLUSH_PAGES)) > 0:
            evicted += count
            await asyncio.sleep(0)  # plans go on in between
        return pb.FlushCacheResponse(evicted_pages=evicted)

    async def CheckIntegrity(  # noqa: N802 # the RPC's name
        self, request: pb.CheckIntegrityRequest, context: Any
    ) -> pb.CheckIntegrityResponse:
        violations = self.core.check_integrity()
        self._on_change()
        self.runner_client.wake()
        return pb.CheckIntegrityResponse(violations=violations)

    def _open(self, first: pb.SessionRequest | None) -> GatewaySession:
        if self._draining:
            raise Unavailable(
                Reason.DRAINING, "the manager is draining: open a session with another one"
            )
        if first is None or first.WhichOneof("command") != "open":
            raise InvalidArgument(
                Reason.PROTOCOL_VIOLATION,
                "the first message of a session must be open",
                field="open",
            )
        check_protocol_version("open.protocol_version", first.open.protocol_version, "manager")
        session = GatewaySession(self._next_session_id, first.open.model_fingerprint)
        runner = self.core.runner
        _check_model(session, runner)
        self._next_session_id += 1
        self._sessions[session.session_id] = session
        session.put_opened(serving=self._serving, runner=runner)
        log.info("session opened", session_id=session.session_id)
        return session

    def _close(self, session: GatewaySession) -> None:
        del self._sessions[session.session_id]
        aborted = self.core.close_session(session.session_id)
        session.log_again()
        log.info("session closed", session_id=session.session_id, aborted=aborted)
        self.runner_client.wake()
        self._announce()

    async def _read(
        self, session: GatewaySession, requests: AsyncIterator[pb.SessionRequest]
    ) -> None:
        async for request in requests:
            command = request.WhichOneof("command")
            if command == "submit":
                self._submit(session, request.submit)
            elif command == "stop":
                self.core.stop(session.session_id, request.stop.key)
            elif command == "cancel":
                self.core.cancel(session.session_id, request.cancel.key)
            else:
                raise InvalidArgument(
                    Reason.PROTOCOL_VIOLATION,
                    f"a session message with {command} after open",
                    field="command",
                )
            self.runner_client.wake()
            self._announce()

    def _submit(self, session: GatewaySession, submit: pb.Submit) -> None:
        try:
            if self._draining:
                raise Unavailable(Reason.DRAINING, "the manager is draining: try another one")
            if submit.key <= session.last_key:
                raise InvalidArgument(
                    Reason.PROTOCOL_VIOLATION,
                    f"key {submit.key} is not above the last one {session.last_key}",
                    field="key",
                )
            session.last_key = submit.key
            submission = _submission(submit)
            self.core.submit(session.session_id, submission, self._now_s())
        except PagewireError as error:
            session.put_rejected(submit.key, error)
        else:
            session.put_accepted(submit.key)
            if submission.is_again:
                session.note_again(len(submission.resume_token_ids))

    def _on_change(self) -> None:
        """Deliver what the core has for sessions, and tell them when the runner comes or goes."""
        for output in self.core.take_outputs():
            if isinstance(output, Sampled):
                put_sampled(self._sessions, output, time.time_ns() // 1000)
            elif (session := self._sessions.get(output.session_id)) is None:
                continue
            elif isinstance(output, Finished):
                session.put_finished(output)
            elif isinstance(output, TokenLogprobs):
                session.put_logprobs(output)
            else:
                session.put_admitted(output)
        self._tell_sessions()
        self._announce()

    @property
    def _serving(self) -> bool:
        return self.core.serving and not self._draining

    def drain(self) -> None:
        """Take no new session or request; those that are here go on."""
        self._draining = True
        self._tell_sessions()

    def _tell_sessions(self) -> None:
        """Say what stands behind the manager, where it changed."""
        standing = (self._serving, self.core.runner)
        if standing == self._told:
            return
        self._told = standing
        for session in self._sessions.values():
            session.put_opened(serving=self._serving, runner=self.core.runner)
            try:
                _check_model(session, self.core.runner)
            except FailedPrecondition as mismatch:
                session.end(mismatch)  # it opened when there was nothing to compare with

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def keep_time(self) -> None:
        """Let requests expire that wait past their time, and no gateway take us for hung; in quiet
        moments recount pages and collect garbage, so that neither takes long when there is work.
        Until cancelled.
        """
        gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTIONS)
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()

    def tick(self) -> None:
        """A moment passed."""
        self.core.tick(self._now_s())
        if self.core.is_idle and self.core.scheduler is not None:
            self._idle_ticks += 1
            if self._idle_ticks == CHECK_AFTER_TICKS:
                gc.collect()
                if self.core.check_integrity():
                    self.runner_client.wake()
        else:
            self._idle_ticks = 0
        self._on_change()
        load = load_of(self.core)
        for session in self._sessions.values():
            session.tick(load)

    def _announce(self) -> None:
        self.changed.set()
        if len(self.core.live):
            self.idle.clear()
        else:
            self.idle.set()


def _check_model(session: GatewaySession, runner: RunnerDescription | None) -> None:
    """Errors: FailedPrecondition for a tokenizer of another model than the runner serves."""
    if runner is not None:
        given, served = session.model_fingerprint, runner.model_fingerprint
        check_fingerprint("open.model_fingerprint", given, served, "the runner")


def _submission(submit: pb.Submit) -> Submission:
    return Submission(
        key=submit.key,
        request_id=submit.request_id,
        prompt_ids=np.array(submit.prompt_ids, dtype=np.int32),
        sampling=decode_sampling(submit.sampling),
        max_tokens=submit.max_tokens if submit.HasField("max_tokens") else None,
        stop_token_ids=np.array(submit.stop_token_ids, dtype=np.int32),
        choice=submit.choice,
        first_choice_key=submit.first_choice_key if submit.HasField("first_choice_key") else None,
        priority=submit.priority,
        cache_salt=submit.cache_salt,
        remaining_s=(
            submit.remaining.ToNanoseconds() / 1e9 if submit.HasField("remaining") else None
        ),
        traceparent=submit.traceparent,
        min_tokens=submit.min_tokens,
        resume_token_ids=np.array(submit.resume_token_ids, dtype=np.int32),
        age_s=submit.age.ToNanoseconds() / 1e9 if submit.HasField("age") else None,
    )
