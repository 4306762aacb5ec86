"""Token ids to text, one at a time, equal to the decode of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import NamedTuple

from gateway.byte_run import char_of_each_byte
from gateway.decode_window import REPLACEMENT, DecodeWindow
from gateway.tokenizer import Tokenizer


class TextSpan(NamedTuple):
    """Where a token's text lies in the output's text: [start, end) in characters, counting each
    that it is part of.

    Tokens that share a character overlap. start == end for a token without text.
    """

    start: int
    end: int


class Settled(NamedTuple):
    """What one more token settled."""

    text: str
    spans: list[
        TextSpan
    ]  # of the next tokens, in the order of their push, whose place in the text is now known


class Detokenizer:
    """The text of one output, given out as far as no later token can change it.

    What the pushes and the flush give, joined, is decode(prompt + output) less what it has in
    common with decode(prompt) at the start (so a character that the prompt leaves unfinished
    belongs to the output). No piece is ever taken back; U+FFFD appears only where that decode has
    it. The cost of a token does not grow with the output.

    Held back are an unfinished UTF-8 character, and with a byte-fallback tokenizer a run of byte
    tokens until another token ends it, as one bad byte turns the whole run into U+FFFD.

    Ids without text: `textless_ids`, ids that the tokenizer does not know, and with
    `skip_special_tokens` its special ones but for `shown_ids`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        textless_ids: frozenset[int] = frozenset(),
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._backend = tokenizer.backend
        self._byte_values = tokenizer.byte_values
        self._hidden_ids = tokenizer.special_ids if skip_special_tokens else frozenset()
        run = list(takewhile(self._byte_values.__contains__, self._shown_backwards(prompt_ids)))[
            ::-1
        ]
        self._window = DecodeWindow(
            self._backend,
            islice(self._shown_backwards(prompt_ids), len(run), None),
            holds_replacement=not self._byte_values,
        )
        self._run = run  # byte tokens that no other token has ended yet
        self._run_in_prompt = len(run)
        self._waiting: list[
            bool
        ] = []  # for each output token since the run began, whether it is of the run
        self._prompt_rest = self._window.preview(
            run
        )  # what of decode(prompt) a later token may change
        self._hidden_ids = (self._hidden_ids - shown_ids) | textless_ids
        self._num_chars = 0  # of the output, given out

    def push(self, token_id: int) -> str:
        """The text that this token makes certain; often empty, sometimes that of several tokens."""
        return self.settle(token_id).text

    def flush(self) -> str:
        """The text still held, with U+FFFD for what was cut. Ends the output: push no more."""
        return self.finish().text

    @property
    def held(self) -> str:
        """What `flush` would give now."""
        return _beyond(self._prompt_rest, self._window.preview(self._run))

    def settle(self, token_id: int) -> Settled:
        """`push`, and where the tokens' texts lie."""
        if not self._shows(token_id):
            return self._add_textless(token_id)
        if token_id in self._byte_values:
            self._run.append(token_id)
            self._waiting.append(True)
            return Settled("", [])
        settled = self._settle_run()
        held = bool(self._window.held)
        start = self._num_chars
        fresh = self._window.append([token_id])
        text = self._less_prompt(fresh)
        if held and fresh.startswith(REPLACEMENT):
            # The character held was cut off: this token has no part in it.
            start += 1 - (len(fresh) - len(text))
        self._num_chars += len(text)
        end = self._num_chars + len(self._window.held)
        return Settled(settled.text + text, [*settled.spans, TextSpan(start, max(start, end))])

    def finish(self) -> Settled:
        """`flush`, and where the last tokens' texts lie."""
        settled = self._settle_run()
        text = self._less_prompt(self._window.held)
        self._num_chars += len(text)
        return Settled(settled.text + text, settled.spans)

    def _add_textless(self, token_id: int) -> Settled:
        if self._run:
            self._waiting.append(False)
            return Settled("", [])
        return Settled("", [TextSpan(self._num_chars, self._num_chars)])

    def _settle_run(self) -> Settled:
        """Gives out the run of byte tokens, which has ended."""
        if not self._run:
            return Settled("", [])
        first = self._num_chars
        text = self._less_prompt(self._window.append(self._run))
        self._num_chars += len(text)
        chars = char_of_each_byte(bytes(self._byte_values[token_id] for token_id in self._run))
        origin = self._num_chars - chars[-1] - 1  # below `first` when the run starts in the prompt
        run_chars = islice(chars, self._run_in_prompt, None)
        spans = []
        end = first
        for of_run in self._waiting:
            start = end
            if of_run:
                start = max(first, origin + next(run_chars))
                end = min(start + 1, self._num_chars)
            spans.append(TextSpan(start, end))
        self._run, self._waiting, self._run_in_prompt = [], [], 0
        return Settled(text, spans)

    def _shows(self, token_id: int) -> bool:
        return token_id not in self._hidden_ids and self._backend.id_to_token(token_id) is not None

    def _shown_backwards(self, ids: Sequence[int]) -> Iterator[int]:
        return filter(self._shows, reversed(ids))

    def _less_prompt(self, fresh: str) -> str:
        """Cuts off what of the first text is the prompt's."""
        text = _beyond(self._prompt_rest, fresh)
        if fresh:
            self._prompt_rest = ""
        return text


def _beyond(prompt_rest: str, text: str) -> str:
    """`text` without what it has in common with `prompt_rest` at the start."""
    if not prompt_rest:
        return text
    pairs = zip(prompt_rest, text, strict=False)
    common = list(takewhile(lambda pair: pair[0] == pair[1], pairs))
    return text[len(common) :]
