"""One answer from its prompt to its end: submit, detokenize, stop. No protobuf."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TypeAlias

from gateway import off_loop
from gateway.bounds import MAX_DETOKENIZED_IDS, MAX_STOPS, check_count
from gateway.seam import Seam
from gateway.submission import Limits, Manager, Submission
from gateway.text_stream import Delta, TextStream
from gateway.token_feed import EndCause, TokenFeed
from gateway.token_logprob import TokenLogprob
from gateway.tokenizer import Tokenizer
from servicekit.errors import InvalidArgument, PagewireError, Reason
from servicekit.sampling import Sampling
from servicekit.token_ids import check_token_ids


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a client asks for, its prompt tokenized."""

    request_id: str
    prompt_ids: Sequence[int]
    sampling: Sampling
    max_tokens: int | None = None  # None: what fits max_seq_len
    stop_strings: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    min_tokens: int = 0  # before so many, nothing ends the answer
    include_stop: bool = False  # in the text: the stop string, or the text of the stop token
    whole_ids: bool = False  # deliver the token that a stop string cuts, too
    remaining_s: float | None = None  # until the caller's deadline; None: it has none
    traceparent: str = ""  # W3C trace context of the caller; "": none
    priority: int = 0
    cache_salt: str = ""
    num_choices: int = 1
    resume_token_ids: Sequence[int] = ()  # the answer's first ones, which the client has


class FinishReason(Enum):
    """Names of inference.proto's FinishReason, without their prefix."""

    STOP = "STOP"
    LENGTH = "LENGTH"


@dataclass(frozen=True, slots=True)
class Started:
    """The manager took the request, all its choices."""

    request_id: str
    prompt_tokens: int
    resumed_text: str = ""  # of resume_token_ids; deltas go on after it


@dataclass(frozen=True, slots=True)
class Finished:
    """How an answer ended. At most one of the three `…_id` and `stop_string` is set, and only for
    STOP.
    """

    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0  # of the prompt, found in the cache
    resumed_tokens: int = 0  # of completion_tokens, those that the client had before
    end_token_id: int | None = None
    stop_token_id: int | None = None
    stop_string: str | None = None
    detail: str = ""
    choice: int = 0


Event: TypeAlias = Started | Delta | Finished


class Generation:
    """One choice of a request against the manager. `events()` is consumed once; leaving it early
    cancels it.
    """

    def __init__(
        self,
        manager: Manager,
        tokenizer: Tokenizer,
        request: GenerationRequest,
        choice: int = 0,
        first: Generation | None = None,
    ) -> None:
        """`first` is choice 0 of the same request, where this is a further one; see
        `further_choice`. Errors: InvalidArgument for stop strings or token ids that cannot be.
        """
        if first is None:
            check_count("stop.strings", len(request.stop_strings), MAX_STOPS, least=0)
            check_count("stop.token_ids", len(request.stop_token_ids), MAX_STOPS, least=0)
            check_token_ids("prompt", request.prompt_ids, tokenizer.vocab_size)
            check_token_ids("stop.token_ids", request.stop_token_ids, tokenizer.vocab_size)
            _check_resumes_one(request)
            _check_resumes_what_fits(request, manager.limits)
            check_token_ids("resume_token_ids", request.resume_token_ids, tokenizer.vocab_size)
        self._manager = manager
        self._tokenizer = tokenizer
        self._request = request
        self._choice = choice
        self._first = first
        own_ends = frozenset() if request.ignore_eos else tokenizer.end_token_ids
        self._end_token_ids = frozenset(end for end in own_ends if end < tokenizer.vocab_size)
        stop_token_ids = frozenset(request.stop_token_ids)
        self._stop_token_ids = self._end_token_ids | stop_token_ids
        shown_ids = stop_token_ids if request.include_stop else frozenset()
        self._text = TextStream(
            tokenizer,
            request.prompt_ids,
            request.stop_strings,
            include_stop=request.include_stop,
            min_tokens=request.min_tokens,
            whole_ids=request.whole_ids,
            end_token_ids=self._stop_token_ids - shown_ids,
            shown_ids=shown_ids,
        )
        self._feed: TokenFeed | None = None
        self._ended_by: PagewireError | None = None  # before there was a feed
        self._last_token_id = request.resume_token_ids[-1] if request.resume_token_ids else 0

    @property
    def feed(self) -> TokenFeed | None:
        """What its tokens come by; None before it is submitted."""
        return self._feed

    def further_choice(self, choice: int) -> Generation:
        """Another answer to the same request. Its `events` begin after those of this one."""
        return Generation(self._manager, self._tokenizer, self._request, choice, first=self)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Started, deltas that say something, Finished. Errors: what the manager rejects or fails
        the request with.
        """
        request = self._request
        resumed = await off_loop.resume(self._text, request.resume_token_ids)
        if self._ended_by is not None:
            raise self._ended_by
        feed = self._feed = self._manager.submit(
            Submission(
                request_id=request.request_id,
                prompt_ids=request.prompt_ids,
                sampling=request.sampling,
                max_tokens=request.max_tokens,
                stop_token_ids=sorted(self._stop_token_ids),
                min_tokens=request.min_tokens,
                remaining_s=request.remaining_s,
                traceparent=request.traceparent,
                priority=request.priority,
                cache_salt=request.cache_salt,
                choice=self._choice,
                first_choice=None if self._first is None else self._first.feed,
                resume_token_ids=request.resume_token_ids,
            )
        )
        try:
            await feed.accepted()
            if self._text.stopped is not None:
                self._manager.stop(feed, self._text.kept_tokens)
            yield Started(request.request_id, len(request.prompt_ids), resumed.text)
            async for event in self._answer(feed, Seam(resumed)):
                yield event
        finally:
            self._manager.cancel(feed)

    def cancel(self, why: PagewireError) -> bool:
        """End the request, and `events()` with `why` after the tokens that came before; one that is
        not submitted yet never is. False, and nothing happens, when the manager has no such request
        any more.
        """
        feed = self._feed
        if feed is None:
            self._ended_by = self._ended_by or why
            return True
        if feed.over or self._text.stopped is not None:
            return False
        self._manager.cancel(feed)
        feed.put_failure(why)
        return True

    async def _answer(self, feed: TokenFeed, seam: Seam) -> AsyncGenerator[Event, None]:
        ended: EndCause | None = None
        while ended is None and self._text.stopped is None:
            token_ids, ended, sent_at_us = await feed.take()
            if token_ids:
                self._last_token_id = token_ids[-1]
            delta = seam.new(self._text.push(token_ids))
            if self._text.stopped is not None:
                self._manager.stop(feed, self._text.kept_tokens)
            if delta.text or delta.token_ids:
                yield self._told(delta, feed, sent_at_us)
        delta = seam.new(self._text.finish())
        if delta.text or delta.token_ids:
            yield self._told(delta, feed)
        yield self._finished(ended, feed.cached_tokens)

    def _told(self, delta: Delta, feed: TokenFeed, sent_at_us: int | None = None) -> Delta:
        logprobs: tuple[TokenLogprob, ...] = ()
        if self._request.sampling.logprobs is not None:
            logprobs = feed.take_logprobs(len(delta.token_ids))
        return delta._replace(logprobs=logprobs, choice=self._choice, sent_at_us=sent_at_us)

    def _finished(self, ended: EndCause | None, cached_tokens: int) -> Finished:
        finished = partial(
            Finished,
            prompt_tokens=len(self._request.prompt_ids),
            completion_tokens=self._text.kept_tokens,
            cached_tokens=cached_tokens,
            choice=self._choice,
            resumed_tokens=min(len(self._request.resume_token_ids), self._text.kept_tokens),
        )
        if self._text.stopped is not None:
            return finished(FinishReason.STOP, stop_string=self._text.stopped)
        if ended is EndCause.STOP_TOKEN:
            last = self._last_token_id
            if last in self._end_token_ids:
                return finished(FinishReason.STOP, end_token_id=last)
            return finished(FinishReason.STOP, stop_token_id=last)
        detail = "cache_full" if ended is EndCause.CACHE_FULL else ""
        return finished(FinishReason.LENGTH, detail=detail)


def _check_resumes_one(request: GenerationRequest) -> None:
    if request.resume_token_ids and request.num_choices > 1:
        raise InvalidArgument(
            Reason.INVALID_FIELD,
            f"resume_token_ids are of one answer and n is {request.num_choices}: leave n out",
            field="resume_token_ids",
        )


def _check_resumes_what_fits(request: GenerationRequest, limits: Limits | None) -> None:
    """Before any of them is detokenized."""
    resume_len = len(request.resume_token_ids)
    if limits is None:
        check_count("resume_token_ids", resume_len, MAX_DETOKENIZED_IDS, least=0)
    elif resume_len > limits.max_seq_len:
        raise InvalidArgument(
            Reason.INVALID_FIELD,
            f"resume_token_ids has {resume_len} entries, and max_seq_len is {limits.max_seq_len}: "
            "send those of one answer",
            field="resume_token_ids",
        )
