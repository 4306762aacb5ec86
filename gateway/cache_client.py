"""The Session to cachesvc: one stream that carries every request of this process. When it is lost,
its requests wait for the next one, and go on there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import grpc
import structlog
from pagewire.v1 import cache_pb2 as pb
from pagewire.v1 import cache_pb2_grpc

from gateway.held_requests import HeldRequests
from gateway.manager_watch import ManagerWatch
from gateway.submission import Limits, Submission
from gateway.submit_codec import encode_submit
from gateway.token_feed import EndCause, TokenFeed
from gateway.token_logprob import TokenLogprob
from servicekit.client import Ended, keep_up, stream_channel
from servicekit.errors import Internal, PagewireError, Reason, Unavailable, error_named
from servicekit.plan import PROTOCOL_VERSION
from servicekit.status import error_of, seconds_of

log = structlog.get_logger()

_CAUSE_PREFIX = "FINISH_CAUSE_"
# A few steps of 64 rows. Tokens that a busy gateway has not read wait at the manager then, which
# merges them; in gRPC's buffers they would come one message after the other, seconds late.
_WINDOW_BYTES = 4096
_LOOK_S = 0.1


class CacheClient:
    """Owns the session and the requests that live. `on_change` is called when `serving` may have
    changed.

    A request waits at most `max_outage_s` while nothing serves behind this gateway; a manager that
    says nothing for `manager_silence_s` is taken for hung. `clock` tells seconds.
    """

    def __init__(
        self,
        address: str,
        model_fingerprint: str,
        on_change: Callable[[], None],
        *,
        max_outage_s: float = 120.0,
        manager_silence_s: float = 3.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fingerprint = model_fingerprint
        self._on_change = on_change
        self._max_outage_s = max_outage_s
        self._clock = clock
        self._held = HeldRequests()
        self._watch = ManagerWatch(manager_silence_s, clock())
        self._commands: asyncio.Queue[pb.SessionRequest | None] | None = None  # None: no session
        self._is_begun = False  # those of the session before were submitted in this one
        self._why = "it was not reached yet"  # there is no session
        self._limits: Limits | None = None
        self._draining = False
        self._channel = stream_channel(address, _WINDOW_BYTES)

    @property
    def serving(self) -> bool:
        """A session is open, a runner stands behind it, and nothing hangs or drains."""
        return self._watch.serves and not self._draining

    @property
    def limits(self) -> Limits | None:
        """Those of the runner seen last; None before the first one."""
        return self._limits

    @property
    def draining(self) -> bool:
        return self._draining

    def drain(self) -> None:
        """Take no new request, for good; those that are here go on."""
        self._draining = True
        self._on_change()

    def submit(self, submission: Submission) -> TokenFeed:
        if self._draining:
            raise Unavailable(
                Reason.DRAINING, "the server is draining: send the request to another one"
            )
        if (lack := self._lack()) is not None:
            raise Unavailable(
                Reason.CHAIN_NOT_ATTACHED, f"{lack}: try again when health is SERVING"
            )
        feed = self._held.begin(submission, self._clock())
        self._send(encode_submit(feed.key, submission))
        return feed

    def _lack(self) -> str | None:
        """Why nothing new can be submitted now."""
        if self._commands is None:
            return "cachesvc is not reached"
        if self._watch.silent:
            return "cachesvc does not answer"
        if not self._is_begun and self._held.any_unsent:
            return "cachesvc came anew and has no runner yet"
        return None

    def stop(self, feed: TokenFeed, kept_tokens: int) -> None:
        if self._forget(feed):
            self._send(pb.SessionRequest(stop=pb.Stop(key=feed.key, kept_tokens=kept_tokens)))

    def cancel(self, feed: TokenFeed) -> None:
        if self._forget(feed):
            self._send(pb.SessionRequest(cancel=pb.Cancel(key=feed.key)))

    def _forget(self, feed: TokenFeed) -> bool:
        """Whether the manager has the request, and is to hear of it."""
        request = self._held.end(feed.key)
        return request is not None and request.is_sent

    def _send(self, command: pb.SessionRequest) -> None:
        assert self._commands is not None
        self._commands.put_nowait(command)

    async def run(self) -> None:
        """Keep a session open until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(keep_up(self._opened_once, "no session with cachesvc"))
                tasks.create_task(self._look_on())
        finally:
            await self._channel.close()

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self.look()

    def look(self) -> None:
        """Time passed: does the manager hang, has nothing served for too long?"""
        now_s = self._clock()
        if self._watch.look(now_s):
            self._on_change()
        since_s = self._watch.outage_since_s
        if since_s is not None and now_s - since_s >= self._max_outage_s:
            self._give_up(now_s)

    def _give_up(self, now_s: float) -> None:
        """Fail those that have waited through all of the outage that may be."""
        lack = self._lack() or "cachesvc has no runner"
        why = f" ({self._why})" if self._commands is None else ""
        failure = Unavailable(
            Reason.SESSION_LOST,
            f"nothing has served behind this gateway for {self._max_outage_s:g} s: {lack}{why}; "
            "send the request again with the tokens so far as resume_token_ids",
        )
        for request in self._held.end_all_taken_by(now_s - self._max_outage_s):
            if request.is_sent:
                self._send(pb.SessionRequest(cancel=pb.Cancel(key=request.feed.key)))
            request.feed.put_failure(failure)

    async def _opened_once(self) -> Ended:
        why = await self._one_session()
        was_open = self._commands is not None
        self._lose(why)
        return Ended(was_open, why)

    async def _one_session(self) -> str:
        """One Session call to its end. Returns why it ended."""
        commands: asyncio.Queue[pb.SessionRequest | None] = asyncio.Queue()  # None: the end
        commands.put_nowait(
            pb.SessionRequest(
                open=pb.Open(protocol_version=PROTOCOL_VERSION, model_fingerprint=self._fingerprint)
            )
        )

        async def sent() -> AsyncIterator[pb.SessionRequest]:
            while (command := await commands.get()) is not None:
                yield command

        try:
            call = cache_pb2_grpc.CacheServiceStub(self._channel).Session(sent())
            async for response in call:
                self._commands = commands
                self._take(response)
        except grpc.aio.AioRpcError as error:
            return error_of(error).message
        finally:
            commands.put_nowait(None)  # grpc.aio asks for the next one as long as it gets any
        return "cachesvc ended the session"

    def _lose(self, why: str) -> None:
        """The manager forgot this session's requests; they wait for the next one."""
        if self._commands is not None:
            log.warning("session with cachesvc lost", reason=why, live_requests=len(self._held))
        self._commands, self._is_begun, self._why = None, False, why
        self._held.lose_session()
        self._watch.lost(self._clock())
        self._on_change()

    def _take(self, response: pb.SessionResponse) -> None:
        now_s = self._clock()
        if self._watch.heard(now_s):
            self._on_change()
        if response.HasField("opened"):
            self._take_opened(response.opened, now_s)
        self._take_answers(response)
        if response.HasField("step_output"):
            self._watch.moved(now_s)
            self._take_output(response.step_output)
        for finished in response.finished:
            self._finish(finished)

    def _take_answers(self, response: pb.SessionResponse) -> None:
        for accepted in response.accepted:
            if (feed := self._held.feed_of(accepted.key)) is not None:
                feed.put_accepted()
        for rejected in response.rejected:
            if rejected.reason != Reason.DRAINING or not self._held.put_off(rejected.key):
                self._fail(rejected)
        for admitted in response.admitted:  # before an end: that may be in the same message
            if (feed := self._held.feed_of(admitted.key)) is not None:
                feed.put_admitted(admitted.cached_tokens)

    def _take_output(self, output: pb.StepOutput) -> None:
        sent_at_us = output.sent_at_us or None
        for key, token_id in zip(output.keys, output.token_ids, strict=True):
            if (feed := self._held.feed_of(key)) is not None:
                feed.put_token(token_id, sent_at_us)
        for one in output.logprobs:
            if (feed := self._held.feed_of(one.key)) is not None:
                top = tuple(zip(one.top_ids, one.top, strict=True))
                feed.put_logprob(TokenLogprob(one.chosen, top))

    def _take_opened(self, opened: pb.Opened, now_s: float) -> None:
        if opened.HasField("limits"):
            self._limits = Limits(opened.limits.max_seq_len, opened.limits.pool_tokens)
        serves = opened.serving and opened.HasField("limits")
        if not self._is_begun and (serves or not self._held.any_unsent):
            self._begin(now_s)
        self._watch.told(now_s, serving=opened.serving)
        self._on_change()

    def _begin(self, now_s: float) -> None:
        """Submit again what an earlier session had, before anything new."""
        self._is_begun = True
        resubmitted = held_tokens = 0
        for key, submission in self._held.send_again(now_s):
            self._send(encode_submit(key, submission))
            resubmitted += 1
            held_tokens += len(submission.resume_token_ids)
        log.info("session with cachesvc opened", resubmitted=resubmitted, held_tokens=held_tokens)

    def _finish(self, finished: pb.RequestFinished) -> None:
        if finished.HasField("failure"):
            self._fail(finished.failure)
        elif (request := self._held.end(finished.key)) is not None:
            request.feed.put_end(
                EndCause(pb.FinishCause.Name(finished.cause).removeprefix(_CAUSE_PREFIX))
            )

    def _fail(self, rejected: pb.Rejected) -> None:
        if (request := self._held.end(rejected.key)) is not None:
            request.feed.put_failure(_failure_of(rejected))


def _failure_of(rejected: pb.Rejected) -> PagewireError:
    if rejected.reason not in Reason.__members__:
        return Internal(Reason.INTERNAL, rejected.message)
    return error_named(
        rejected.code,
        Reason(rejected.reason),
        rejected.message,
        metadata=rejected.metadata,
        retry_after_s=(
            seconds_of(rejected.retry_after) if rejected.HasField("retry_after") else None
        ),
    )
