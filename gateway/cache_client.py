"""The Session to cachesvc: one stream that carries every request of this process, opened again when
it is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc
import structlog
from pagewire.v1 import cache_pb2 as pb
from pagewire.v1 import cache_pb2_grpc

from gateway.submission import Limits, Submission
from gateway.token_feed import EndCause, TokenFeed
from gateway.token_logprob import TokenLogprob
from servicekit.client import Ended, keep_up, stream_channel
from servicekit.errors import Internal, PagewireError, Reason, Unavailable, error_named
from servicekit.plan import PROTOCOL_VERSION
from servicekit.sampling_codec import encode_sampling
from servicekit.status import duration_of, error_of, seconds_of

log = structlog.get_logger()

_CAUSE_PREFIX = "FINISH_CAUSE_"
# A few steps of 64 rows. Tokens that a busy gateway has not read wait at the manager then, which
# merges them; in gRPC's buffers they would come one message after the other, seconds late.
_WINDOW_BYTES = 4096


class CacheClient:
    """Owns the session and the feeds of its live requests. `on_change` is called when `serving` may
    have changed.
    """

    def __init__(self, address: str, model_fingerprint: str, on_change: Callable[[], None]) -> None:
        self._fingerprint = model_fingerprint
        self._on_change = on_change
        self._feeds: dict[int, TokenFeed] = {}
        self._next_key = 1
        self._commands: asyncio.Queue[pb.SessionRequest | None] | None = None  # None: no session
        self._manager_serves = False
        self._limits: Limits | None = None
        self._draining = False
        self._channel = stream_channel(address, _WINDOW_BYTES)

    @property
    def serving(self) -> bool:
        """A session is open, a runner stands behind it, and nothing drains."""
        return self._commands is not None and self._manager_serves and not self._draining

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
        if self._commands is None:
            raise Unavailable(
                Reason.CHAIN_NOT_ATTACHED,
                "cachesvc is not reached: try again when health is SERVING",
            )
        feed = TokenFeed(self._next_key)
        self._next_key += 1
        self._feeds[feed.key] = feed
        self._commands.put_nowait(
            pb.SessionRequest(
                submit=pb.Submit(
                    key=feed.key,
                    request_id=submission.request_id,
                    prompt_ids=submission.prompt_ids,
                    sampling=encode_sampling(submission.sampling),
                    max_tokens=submission.max_tokens,
                    min_tokens=submission.min_tokens,
                    stop_token_ids=submission.stop_token_ids,
                    remaining=(
                        None
                        if submission.remaining_s is None
                        else duration_of(submission.remaining_s)
                    ),
                    traceparent=submission.traceparent,
                    priority=submission.priority,
                    cache_salt=submission.cache_salt,
                    choice=submission.choice,
                    first_choice_key=(
                        None if submission.first_choice is None else submission.first_choice.key
                    ),
                    resume_token_ids=submission.resume_token_ids,
                )
            )
        )
        return feed

    def stop(self, feed: TokenFeed, kept_tokens: int) -> None:
        if self._forget(feed):
            assert self._commands is not None
            self._commands.put_nowait(
                pb.SessionRequest(stop=pb.Stop(key=feed.key, kept_tokens=kept_tokens))
            )

    def cancel(self, feed: TokenFeed) -> None:
        if self._forget(feed):
            assert self._commands is not None
            self._commands.put_nowait(pb.SessionRequest(cancel=pb.Cancel(key=feed.key)))

    def _forget(self, feed: TokenFeed) -> bool:
        return self._feeds.pop(feed.key, None) is not None

    async def run(self) -> None:
        """Keep a session open until cancelled."""
        try:
            await keep_up(self._opened_once, "no session with cachesvc")
        finally:
            await self._channel.close()

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
                if self._commands is None:
                    self._commands = commands
                    log.info("session with cachesvc opened")
                self._take(response)
        except grpc.aio.AioRpcError as error:
            return error_of(error).message
        finally:
            commands.put_nowait(None)  # grpc.aio asks for the next one as long as it gets any
        return "cachesvc ended the session"

    def _lose(self, why: str) -> None:
        """The manager forgot this session's requests."""
        self._commands = None
        self._manager_serves = False
        feeds, self._feeds = self._feeds, {}
        for feed in feeds.values():
            feed.put_failure(
                Unavailable(
                    Reason.SESSION_LOST,
                    f"cachesvc was lost in mid-answer ({why}): send the request again",
                )
            )
        self._on_change()

    def _take(self, response: pb.SessionResponse) -> None:
        if response.HasField("opened"):
            self._take_opened(response.opened)
        for accepted in response.accepted:
            if (feed := self._feeds.get(accepted.key)) is not None:
                feed.put_accepted()
        for rejected in response.rejected:
            self._fail(rejected)
        for admitted in response.admitted:  # before an end: that may be in the same message
            if (feed := self._feeds.get(admitted.key)) is not None:
                feed.put_admitted(admitted.cached_tokens)
        self._take_output(response.step_output)
        for finished in response.finished:
            self._finish(finished)

    def _take_output(self, output: pb.StepOutput) -> None:
        sent_at_us = output.sent_at_us or None
        for key, token_id in zip(output.keys, output.token_ids, strict=True):
            if (feed := self._feeds.get(key)) is not None:
                feed.put_token(token_id, sent_at_us)
        for one in output.logprobs:
            if (feed := self._feeds.get(one.key)) is not None:
                top = tuple(zip(one.top_ids, one.top, strict=True))
                feed.put_logprob(TokenLogprob(one.chosen, top))

    def _take_opened(self, opened: pb.Opened) -> None:
        self._manager_serves = opened.serving
        if opened.HasField("limits"):
            self._limits = Limits(opened.limits.max_seq_len, opened.limits.pool_tokens)
        self._on_change()

    def _finish(self, finished: pb.RequestFinished) -> None:
        if finished.HasField("failure"):
            self._fail(finished.failure)
        elif (feed := self._feeds.pop(finished.key, None)) is not None:
            feed.put_end(EndCause(pb.FinishCause.Name(finished.cause).removeprefix(_CAUSE_PREFIX)))

    def _fail(self, rejected: pb.Rejected) -> None:
        if (feed := self._feeds.pop(rejected.key, None)) is not None:
            feed.put_failure(_failure_of(rejected))


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
