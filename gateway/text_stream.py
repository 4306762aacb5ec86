"""The text of one generation on its way to the client: detokenized, and ended at a stop string."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gateway.decode_window import REPLACEMENT
from gateway.detokenizer import Detokenizer, Settled, TextSpan
from gateway.stop_strings import StopStrings
from gateway.token_logprob import TokenLogprob
from gateway.tokenizer import Tokenizer


class Delta(NamedTuple):
    """What a client gets next: text, and the ids all of whose text it then has."""

    text: str
    token_ids: tuple[int, ...]
    starts: tuple[int, ...] = ()  # for each id, where in the answer's text its own begins
    logprobs: tuple[TokenLogprob, ...] = ()  # one for each id, where they were asked for
    choice: int = 0
    sent_at_us: int | None = None  # when the manager sent what let it go; None: the end let it go


class _Delivered(NamedTuple):
    token_id: int
    start: int  # of its text


class Resumed(NamedTuple):
    """An answer's first ids, which its client has with their text. The next deltas tell so many of
    the characters and ids again.
    """

    text: str  # less a character that the ids leave unfinished
    had_chars: int
    had_ids: int


class TextStream:
    """Joins Detokenizer and StopStrings, and keeps the ids beside their text.

    An id is delivered together with the last character that it is part of, in order, so a token
    with any part in a stop string, or with `include_stop` beyond it, never is. End tokens are
    tokens like others, but give no text, whatever `skip_special_tokens` says; with ignore_eos pass
    an empty `end_token_ids`, and they decode as the tokenizer does it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        stop_strings: Sequence[str] = (),
        *,
        include_stop: bool = False,
        min_tokens: int = 0,
        whole_ids: bool = False,
        skip_special_tokens: bool = True,
        end_token_ids: frozenset[int] | None = None,
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        """`include_stop` is that of StopStrings, which look at what comes after the text of the
        first `min_tokens` alone: an answer that one ends has no fewer. With `whole_ids` an id that
        a stop string cuts is delivered too. `end_token_ids` are the tokenizer's unless given;
        `shown_ids` have their text even if they are special. InvalidArgument when a stop string is
        empty.
        """
        self._detokenizer = Detokenizer(
            tokenizer,
            prompt_ids,
            skip_special_tokens=skip_special_tokens,
            textless_ids=tokenizer.end_token_ids if end_token_ids is None else end_token_ids,
            shown_ids=shown_ids,
        )
        self._whole_ids = whole_ids
        self._stops = StopStrings(stop_strings, include_stop=include_stop)
        self._exempt_tokens = max(0, min_tokens)  # those to come of the first ones
        self._exempt_end = 0  # where the text of those that came ends
        self._undelivered: deque[int] = deque()
        self._spans: deque[TextSpan] = deque()  # of the first of the undelivered
        self._released_chars = 0
        self._delivered_tokens = 0
        self._kept_when_stopped = 0

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text; look after each push, and after `finish`, which may
        find one too.
        """
        return self._stops.matched

    @property
    def kept_tokens(self) -> int:
        """The output's length in tokens: all pushed, or when stopped the fewest whose text covers
        the kept text.

        Counts a token whose text lies partly in the stop string, which is not delivered. Never less
        than delivered.
        """
        if self.stopped is not None:
            return max(self._kept_when_stopped, self._delivered_tokens)
        return self._delivered_tokens + len(self._undelivered)

    def resume(self, token_ids: Iterable[int]) -> Resumed:
        """Takes the first ids, before any push."""
        texts: list[str] = []
        for token_id in token_ids:
            if self.stopped is not None:
                break
            self._undelivered.append(token_id)
            settled = self._detokenizer.settle(token_id)
            texts.append(settled.text)
            self._release(settled)
            self._deliver()
        text = "".join(texts) + self._detokenizer.held.rstrip(REPLACEMENT)
        return Resumed(text, len(text) - self._released_chars, len(self._undelivered))

    def push(self, token_ids: Iterable[int]) -> Delta:
        """Takes the next ids, gives what they release. Ids after a stop string are dropped."""
        texts: list[str] = []
        delivered: list[_Delivered] = []
        for token_id in token_ids:
            if self.stopped is not None:
                break
            self._undelivered.append(token_id)
            texts.append(self._release(self._detokenizer.settle(token_id)))
            delivered += self._deliver()
        return _delta("".join(texts), delivered)

    def finish(self) -> Delta:
        """Gives all that is held, for a generation that ended by an end token, its length or its
        client.
        """
        if self.stopped is not None:
            return Delta("", ())
        text = self._release(self._detokenizer.finish())
        if self.stopped is not None:
            return _delta(text, self._deliver())
        return _delta(text + self._stops.flush(), self._deliver(at_end=True))

    def _release(self, settled: Settled) -> str:
        self._spans += settled.spans
        unlooked_chars = self._exempt_chars(settled)
        text = settled.text[:unlooked_chars] + self._stops.push(settled.text[unlooked_chars:])
        self._released_chars += len(text)
        if self.stopped is not None:
            covering = (
                idx for idx, span in enumerate(self._spans, start=1) if self._shows_in_kept(span)
            )
            self._kept_when_stopped = self._delivered_tokens + max(covering, default=0)
        return text

    def _exempt_chars(self, settled: Settled) -> int:
        """How much of the text is looked at for no stop string."""
        if self._exempt_tokens:
            first = settled.spans[: self._exempt_tokens]
            self._exempt_tokens -= len(first)
            self._exempt_end = max((span.end for span in first), default=self._exempt_end)
        if self._exempt_tokens:
            return len(settled.text)
        return min(len(settled.text), max(0, self._exempt_end - self._released_chars))

    def _shows_in_kept(self, span: TextSpan) -> bool:
        return span.start < min(span.end, self._released_chars)

    def _deliver(self, *, at_end: bool = False) -> list[_Delivered]:
        """Takes out the ids whose text is wholly released, or when stopped those to be kept; all
        are `at_end`.
        """
        delivered = []
        while self._spans and (at_end or self._is_due(self._spans[0])):
            start = self._spans.popleft().start
            delivered.append(_Delivered(self._undelivered.popleft(), start))
            self._delivered_tokens += 1
        return delivered

    def _is_due(self, span: TextSpan) -> bool:
        if span.end <= self._released_chars:
            return True
        return self._whole_ids and self._delivered_tokens < self._kept_when_stopped


def _delta(text: str, delivered: Sequence[_Delivered]) -> Delta:
    token_ids = tuple(one.token_id for one in delivered)
    return Delta(text, token_ids, tuple(one.start for one in delivered))
